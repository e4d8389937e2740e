"""People in the loop: questions, who answers them, what counts, and how far it can be trusted.

In `queue`, `answer_forms` and `queue_rules` are the vocabulary, `batches` opens and freezes batches of questions,
`assignment` hands questions out, `answers` stores the answers. `people` holds accounts and rights, `review.quality` how
well people agree; `queue_labeller` is the labeller that a run calls. The pages are in `deploy.annotation`.
"""

from pddpo_ray.registry import Extension

PEOPLE = Extension("pddpo_ray.annotation.queue_labeller:QueueLabeller")
"""The labeller that asks through the queue; all that the core uses of this package."""
