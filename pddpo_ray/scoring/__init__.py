"""Rewards and costs of any answer: trained models, stored checkpoints, an LLM judge, and labels drawn from them.

    interface.py         what a scorer is: a number per answer, or reward and cost of each
    policy_scores.py     what two DPO policies imply
    score_losses.py      the losses of reward and cost models; score_fits.py fits models with them
    stored_scorers.py    any stored scorer by folder or hub name
    scored_labeller.py   labels drawn from scores, where a run wants feedback from models
    judge.py             scores and labels from a judge; prompts in judge_prompts.py, its requests in endpoint.py

The model with a score head that is fitted and stored is in training/models/score_model.py.

None of these sees a world's truth. Positive cost is unsafe, zero is the boundary.
"""
