"""What measures harm and helpfulness in the experiment on a real model: heads on the middle of SmolLM2.

The state after the 16th of 30 layers, averaged over the answer's tokens, tells which answer of a pair is unsafe in some
70 % of pairs, the last token's last state in 66 %. Two scorers for the runs (`run.npz`) and two that no run sees
(`judge.npz`), of other files, each with its accuracy on whole prompts that its head did not see.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pddpo_ray.theory.intervals import clopper_pearson

SUFFIX = " Answer in one short sentence."
LAYERS, LONGEST, BATCH = 16, 128, 32
DECAY = 1000.0
"""Of the head's squared norm, over standardised features."""
BOUND = 1.5
"""Scores that limits read end there."""
HELD = 5
"""One prompt in five says how often the head is right."""
ALIKE = 3
"""Words by which the answers of a pair of equal length differ at most."""
SIZES = (50, 100, 200, 400, 800)
"""Pairs from which heads are fitted to see how many it takes."""
LATER = 400
"""Pairs of dialogues of the training file, none of which is the run's, that the judge of helpfulness learns from."""
MODEL, HEADS = "PDDPO_REAL_MODEL", "PDDPO_REAL_HEADS"
"""Where `harm` and `helpful` find the base and the heads."""
Text = tuple[str, str]
Pair = tuple[str, str, str]
"""Prompt, the answer that scores higher (unsafe; more helpful), the other one."""


@cache
def _base(folder: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    decoder = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval().model
    decoder.layers = decoder.layers[:LAYERS]
    decoder.norm = torch.nn.Identity()
    return decoder, AutoTokenizer.from_pretrained(folder)


def _tokens(tokenizer: Any, text: Text) -> tuple[list[int], list[int]]:
    turns = [{"role": "user", "content": text[0].removesuffix(SUFFIX)}]
    asked = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    return list(asked), tokenizer(text[1], add_special_tokens=False)["input_ids"][:LONGEST] or [tokenizer.eos_token_id]


@torch.no_grad()
def features(folder: str, texts: Sequence[Text]) -> np.ndarray:
    """[n, h] float32"""
    decoder, tokenizer = _base(folder)
    encoded = [_tokens(tokenizer, text) for text in texts]
    order = sorted(range(len(texts)), key=lambda index: sum(map(len, encoded[index])))
    out = np.zeros((len(texts), decoder.config.hidden_size), np.float32)
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        longest = max(sum(map(len, encoded[index])) for index in part)
        ids, said = (torch.zeros(len(part), longest, dtype=kind) for kind in (torch.long, torch.float32))
        for row, index in enumerate(part):
            asked, answer = encoded[index]
            ids[row, : len(asked) + len(answer)] = torch.tensor([*asked, *answer])
            said[row, len(asked) : len(asked) + len(answer)] = 1.0
        # padding stands behind the text, where a causal decoder does not look
        hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state.float()
        out[part] = ((hidden * said[..., None]).sum(1) / said.sum(1, keepdim=True)).numpy()
    return out


# --- heads ----------------------------------------------------------------------------------------------------------


def fit_head(higher: np.ndarray, lower: np.ndarray, *, zero: bool) -> np.ndarray:
    """Weights with the constant last. zero: of labels, so that 0 parts the sides; else of pairs. [n, h] -> [h + 1]"""
    both = np.concatenate([higher, lower])
    mean, spread = both.mean(0), both.std(0) + 1e-6
    if zero:
        rows, signs = (both - mean) / spread, np.repeat([1.0, -1.0], len(higher))
    else:
        rows, signs = (higher - lower) / spread, np.ones(len(higher))
    weights = torch.zeros(rows.shape[1], requires_grad=True)
    read, side = torch.tensor(rows, dtype=torch.float32), torch.tensor(signs, dtype=torch.float32)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.softplus(-side * (read @ weights)).sum() + 0.5 * DECAY * (weights**2).sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)
    slope = weights.detach().numpy() / spread
    return np.append(slope, -float(slope @ mean))


def made(folder: str, pairs: Sequence[Pair], *, zero: bool) -> tuple[np.ndarray, dict[str, Any]]:
    """A head, and how often one that did not see their prompts is right: in pairs, and in the first of each prompt."""
    texts = [(prompt, answer) for prompt, *answers in pairs for answer in answers]
    known = features(folder, texts).reshape(len(pairs), 2, -1)
    asked = np.random.default_rng(0).permutation(list(dict.fromkeys(prompt for prompt, _, _ in pairs)))
    place = {prompt: index for index, prompt in enumerate(asked)}
    places = np.array([place[prompt] for prompt, _, _ in pairs])
    apart = places < len(asked) // HELD
    firsts = np.zeros(len(pairs), dtype=bool)
    firsts[np.unique(places, return_index=True)[1]] = True
    words = np.array([len(higher.split()) - len(lower.split()) for _, higher, lower in pairs])

    def right(head: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        return np.asarray((known[chosen, 0] - known[chosen, 1]) @ head[:-1] > 0)

    # of ever more prompts: each head's pairs are among the next one's
    learned = np.flatnonzero(~apart)[np.argsort(places[~apart], kind="stable")]
    heads = {count: fit_head(known[learned[:count], 0], known[learned[:count], 1], zero=zero) for count in SIZES}
    head = fit_head(known[~apart, 0], known[~apart, 1], zero=zero)
    alike = apart & (np.abs(words) <= ALIKE)
    return head, {
        "pairs_to_fit": len(learned),
        "right": float(right(head, apart).mean()),
        "pairs": int(apart.sum()),
        "right_of_prompts": _counted(right(head, apart & firsts)),
        "longer_is_right": float((words[apart] > 0).mean()),
        "right_at_equal_length": _counted(right(head, alike)),
        "right_of_prompts_by_pairs": {count: _counted(right(one, apart & firsts)) for count, one in heads.items()},
    }


def _counted(right: np.ndarray) -> list[float]:
    """How many are right of how many, and the share's exact 95 % interval."""
    return [int(right.sum()), len(right), *clopper_pearson(int(right.sum()), len(right))]


def harm(prompt: Any, response: str, row: Any = None) -> float:
    """The run's score of harm, within -BOUND and BOUND; above 0 the scorer calls an answer unsafe."""
    return float(np.clip(_score("cost", prompt, response), -BOUND, BOUND))


def helpful(prompt: Any, response: str, row: Any = None) -> float:
    """The run's score of helpfulness, within the same bounds."""
    return float(np.clip(_score("reward", prompt, response), -BOUND, BOUND))


@cache
def _heads(file: str) -> dict[str, np.ndarray]:
    return dict(np.load(file))


def _score(kind: str, prompt: Any, response: str) -> float:
    asked = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    return float(scored(os.environ[MODEL], _heads(os.environ[HEADS])[kind], [(asked, response)])[0])


def scored(folder: str, head: np.ndarray, texts: Sequence[Text]) -> np.ndarray:
    return of_features(head, features(folder, texts))


def of_features(head: np.ndarray, known: np.ndarray) -> np.ndarray:
    """[h + 1], [n, h] -> [n]"""
    scores: np.ndarray = known @ head[:-1] + head[-1]
    return scores


# --- files ----------------------------------------------------------------------------------------------------------


def rows_of(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def of_harm(file: Path) -> list[Pair]:
    """The unsafe answer first."""
    pairs = []
    for row in rows_of(file):
        answers = [row["response_0"], row["response_1"]]
        pairs.append((row["prompt"], *(answers if row["is_response_1_safe"] else reversed(answers))))
    return pairs


def of_turns(file: Path, higher: str, lower: str, most: int, *, later: bool = False) -> list[Pair]:
    """Pairs of one turn, of at most `most` words; `later`: of several turns, and the last one is the prompt."""
    return [
        (row["messages"][-1]["content"], row[higher], row[lower])
        for row in rows_of(file)
        if (row["n_user_turns"] > 1) is later and len(row["messages"][-1]["content"].split()) <= most
    ]


def make(data: Path, model: str, out: Path, which: str) -> None:
    """Writes the two heads and how often they are right, unless they are there."""
    if (out / f"{which}.json").is_file():
        return
    out.mkdir(parents=True, exist_ok=True)
    if which == "run":
        harm = of_harm(data / "pku_saferlhf_train.jsonl.gz")
        better = of_turns(data / "preferences_helpful_train.jsonl.gz", "chosen", "rejected", 18)
    else:
        harm = of_harm(data / "pku_saferlhf_test.jsonl.gz")
        harm += of_turns(data / "preferences_harmless_train.jsonl.gz", "rejected", "chosen", 25)
        of_test, of_train = (data / f"preferences_helpful_{part}.jsonl.gz" for part in ("test", "train"))
        better = of_turns(of_test, "chosen", "rejected", 40) + of_turns(of_test, "chosen", "rejected", 18, later=True)
        better += of_turns(of_train, "chosen", "rejected", 18, later=True)[:LATER]
    (cost, of_cost), (reward, of_reward) = made(model, harm, zero=True), made(model, better, zero=False)
    np.savez(out / f"{which}.npz", cost=cost, reward=reward)
    said = {"cost": of_cost, "reward": of_reward}
    (out / f"{which}.json").write_text(json.dumps(said, indent=1))
