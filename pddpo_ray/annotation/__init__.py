"""People in the loop: questions, who answers them, what counts, and how far it can be trusted.

`questions` and `rules` are the vocabulary, `rounds` opens and freezes batches of questions, `queue` hands them out and
takes answers, `people` knows who may, `audit` proves that nothing was lost, `statistics` and `quality` say how well
people agree, `labeller` is the feedback part of a run. No web here: the page is `deploy.annotation`.
"""
