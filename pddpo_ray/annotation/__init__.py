"""People in the loop: questions, who answers them, what counts, and how far it can be trusted.

`answer_forms` and `queue_rules` are the vocabulary. `rounds` opens and freezes batches of questions, `leases` hands the
questions out, `answers` takes the answers in, `people` holds accounts and their rights, `quality` says how well people
agree, and `queue_labeller` is the labeller that a run calls. No web here: the pages are in `deploy.annotation`.
"""

from pddpo_ray.registry import Extension

PEOPLE = Extension("pddpo_ray.annotation.queue_labeller:QueueLabeller")
"""The labeller that asks through the queue: what the core calls of this room."""
