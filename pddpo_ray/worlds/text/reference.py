"""The reference of the text world: a small Llama, pre-trained here on the grammar's own sentences.

The intended distribution is known exactly, so every position of a sentence has a known distribution of the next word.
Training on those distributions instead of on sampled words removes the sampling noise, and a few hundred steps leave
less than one per cent of the probability outside the grammar. A trained reference is kept in a cache folder in Hugging
Face layout, with its exact scores of every answer, so that one machine trains it once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pddpo_ray.config import TextReferenceConfig
from pddpo_ray.storage.whole_files import made_once
from pddpo_ray.training.models.from_scratch import small_llama
from pddpo_ray.worlds.text.grammar import BOS, EOS, PAD, UNKNOWN, Grammar
from pddpo_ray.worlds.text.scoring import score_answers

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

SCORES = "answer_log_probs.npy"
CONTEXT = 64
WARMUP = 20
CACHE_LAYOUT = 1
"""Raised when the training or the layout of the cache changes, so that old entries are not used."""


class ReferenceSpec(TextReferenceConfig):
    """Size, training and seed of the reference."""

    seed: int = 0
    spread: float = 1.0
    """How much more (or less) the common phrases' probabilities differ than usual."""


def intended_slots(grammar: Grammar, spec: ReferenceSpec) -> list[NDArray[np.float64]]:
    """[X, values] per slot: what the reference should say, independent between slots given the prompt.

    Common values have probabilities between about 0.2 and 0.6 that differ by topic and situation.
    """
    rng = np.random.default_rng([spec.seed, 11])
    result = []
    for slot in grammar.slots:
        rare = slot.rare
        values = len(rare)
        by_topic = rng.normal(0.0, 0.3, (len(grammar.topics), 1, values))
        by_situation = rng.normal(0.0, 0.2, (1, len(grammar.situations), values))
        logits = spec.spread * (by_topic + by_situation).reshape(-1, values)
        common = np.where(rare, -np.inf, logits)
        common = np.exp(common - common.max(axis=1, keepdims=True))
        common /= common.sum(axis=1, keepdims=True)
        result.append(np.where(rare, spec.rare, common * (1.0 - spec.rare * rare.sum())))
    return result


def intended_reference(grammar: Grammar, spec: ReferenceSpec) -> NDArray[np.float64]:
    """Intended pi_ref over the answers. -> [X, Y], rows sum to 1."""
    slots = intended_slots(grammar, spec)
    choices = grammar.answer_features
    result = np.ones((len(grammar.prompt_texts), len(choices)))
    for position, shares in enumerate(slots):
        result *= shares[:, choices[:, position]]
    return result


def next_word_targets(grammar: Grammar, slots: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float32]]:
    """Distribution of the next word at every position of every phrase, per slot. -> [X, values, T, V] each

    Slots are independent given the prompt, so what comes before the phrase does not matter (T: the longest phrase).
    """
    result = []
    for phrases, shares in zip(grammar.phrase_ids, slots, strict=True):
        longest = max(map(len, phrases))
        targets = np.zeros((*shares.shape, longest, len(grammar.vocabulary)), dtype=np.float32)
        for value, phrase in enumerate(phrases):
            for position in range(len(phrase)):
                alike = [other for other, words in enumerate(phrases) if words[:position] == phrase[:position]]
                mass = shares[:, alike]
                for word in {phrases[other][position] for other in alike}:
                    chosen = mass[:, [phrases[other][position] == word for other in alike]]
                    targets[:, value, position, word] = chosen.sum(axis=1) / mass.sum(axis=1)
        result.append(targets)
    return result


def build_model(grammar: Grammar, spec: ReferenceSpec) -> LlamaForCausalLM:
    """An untrained model of the given size, float32."""
    return small_llama(
        spec,
        spec.seed,
        vocabulary=len(grammar.vocabulary),
        context=CONTEXT,
        bos=grammar.vocabulary[BOS],
        eos=grammar.eos,
        pad=grammar.vocabulary[PAD],
    )


def pretrain(grammar: Grammar, spec: ReferenceSpec) -> LlamaForCausalLM:
    """Train the reference by cross-entropy against the exact next-word distributions."""
    intended = intended_reference(grammar, spec)
    targets = next_word_targets(grammar, intended_slots(grammar, spec))
    model = build_model(grammar, spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    rng = np.random.default_rng([spec.seed, 12])
    # Half of each batch follows the intended distribution, half is uniform, so that rare contexts are learnt as well.
    draw = 0.5 * intended / len(intended) + 0.5 / intended.size
    draws = rng.choice(intended.size, size=(spec.steps, spec.batch), p=draw.ravel() / draw.sum())
    for step in range(spec.steps):
        for group in optimizer.param_groups:
            group["lr"] = spec.learning_rate * learning_rate_factor(step, spec.steps)
        x, y = np.divmod(draws[step], intended.shape[1])
        loss = _next_word_loss(model, grammar, x, y, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1.0 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP)))


def _next_word_loss(
    model: LlamaForCausalLM,
    grammar: Grammar,
    x: Sequence[int],
    y: Sequence[int],
    targets: Sequence[NDArray[np.float32]],
) -> Tensor:
    """Cross-entropy minus the entropy of the targets, mean per sentence (0 when the model is exact)."""
    sentences = [(*grammar.prompt_ids[i], *grammar.answer_ids[j]) for i, j in zip(x, y, strict=True)]
    longest = max(map(len, sentences))
    ids = torch.zeros((len(sentences), longest), dtype=torch.long)
    rows: list[int] = []
    columns: list[int] = []
    target_parts = []
    for row, sentence in enumerate(sentences):
        ids[row, : len(sentence)] = torch.tensor(sentence)
        start = len(grammar.prompt_ids[x[row]])
        rows += [row] * (len(sentence) - start)
        columns += range(start - 1, len(sentence) - 1)
        for phrases, slot, value in zip(grammar.phrase_ids, targets, grammar.answer_features[y[row]], strict=True):
            target_parts.append(slot[x[row], value, : len(phrases[value])])
    # Padding is on the right, so no real position attends to it and no mask is needed.
    hidden = model.model(input_ids=ids).last_hidden_state[rows, columns]
    log_probs = torch.log_softmax(model.lm_head(hidden), dim=-1)
    target = torch.from_numpy(np.concatenate(target_parts))
    return (torch.special.xlogy(target, target) - target * log_probs).sum() / len(sentences)


def build_tokenizer(grammar: Grammar) -> PreTrainedTokenizerFast:
    """One word, one token; words are separated by spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(grammar.vocabulary, unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token=BOS, eos_token=EOS, pad_token=PAD, unk_token=UNKNOWN, model_max_length=CONTEXT
    )


def cached_reference(spec: ReferenceSpec, cache: Path, grammar: Grammar) -> Path:
    """Folder of the trained reference: config, weights, tokenizer and `answer_log_probs.npy` [X, Y].

    Trains it first if the cache has none for this spec and grammar.
    """

    def make(folder: Path) -> None:
        model = pretrain(grammar, spec)
        model.save_pretrained(folder)
        build_tokenizer(grammar).save_pretrained(folder)
        np.save(folder / SCORES, score_answers(model, grammar))

    return made_once(folder_of_reference(spec, cache, grammar), make)


def folder_of_reference(spec: ReferenceSpec, cache: Path, grammar: Grammar) -> Path:
    """Where the cache keeps the reference of this spec and grammar, whether it has it or not."""
    settings = spec.model_dump(exclude={"spread"} if spec.spread == 1.0 else set())
    identity = json.dumps([CACHE_LAYOUT, settings, grammar.prompt_texts, grammar.answer_texts])
    return cache / f"text-reference-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def answer_log_probs(folder: Path) -> NDArray[np.float64]:
    """The exact scores that were kept with a cached reference. -> [X, Y]"""
    scores: NDArray[np.float64] = np.load(folder / SCORES, allow_pickle=False)
    return scores
