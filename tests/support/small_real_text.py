"""The recipe `real-text` made small: everything it does, in seconds."""

from __future__ import annotations

SMALL_REAL_TEXT = [
    "data.reference={vocabulary: 320, context: 192, hidden: 32, steps: 8}",
    "data.prompt_tokens=128",
    "data.answer_tokens=128",
    "data.prompt_count=6",
    "rollout={engine: transformers, max_tokens: 12, candidates: 4}",
    "feedback.responses=12",
    "offline.pairs=40",
    "explore={calibration: 48, rank: 8, prompts: 3, picks: 2, weights: bonus_only, baseline_answers: 4}",
    "scorers={fit: {steps: 20, learning_rate: 1.0e-3, batch_pairs: 8}}",
    "trainer.fit.steps=3",
]
