"""The recipe `align` made small: overrides for a tiny model, and a model with a chat template."""

from __future__ import annotations

from pathlib import Path

from tests.support.tiny_language_model import save_policy, word_tokenizer

CHAT = (
    "{% for m in messages %}{{ '' if m.role == 'user' else ' ' }}{{ m.content }}"
    "{{ '<eos>' if m.role == 'assistant' else '' }}{% endfor %}"
)
SMALL_ALIGN = [
    "data={prompt_count: 6, held_out: 0.1}",
    "rollout={engine: transformers, max_tokens: 6, candidates: 3}",
    "rounds=3",
    "feedback.responses=8",
    "explore={calibration: 16, rank: 4, prompts: 2, picks: 1, baseline_answers: 4}",
    "offline.pairs=24",
    "policy.temperature=1.0",
    "trainer.threads=1",
    "trainer.fit={steps: 2, batch_pairs: 4}",
]


def save_chat_model(folder: Path, context: int = 128) -> Path:
    """A tiny model whose tokenizer has a chat template."""
    save_policy(folder, 0, context=context)
    tokenizer = word_tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    return folder
