"""Do SmolLM2's draws move under a price on words?

    python -m lab.studies.real_model.own_draws --data FILE --out RESULT [--rounds 5 ...]

Each round draws answers of the policy to prompts that no round asked before and fits centred squares of the draws of a
prompt, (h + a w - mean)^2 with h = log policy/reference in nats and w words (`theory.value_stage` at a target of a nats
a word). Written down: words of fresh draws, the slope of h on w there (at the optimum -a), each step's numbers, and
words on held-out prompts beside the reference's, paired by prompt. One thread; the decoder of own_draws.json computed
in bfloat16.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.studies.real_model.scorers import SUFFIX
from pddpo_lab.value_scores import centred_losses
from pddpo_ray.limits.rules import words
from pddpo_ray.training.models.lora import add_adapters
from pddpo_ray.training.models.pretrained import fetch
from pddpo_ray.training.passes.log_probs import ResponseScorer

HELD = 48
Tokens = tuple[int, ...]


@dataclass
class Trial:
    """What is searched."""

    prompts: int = 24
    draws: int = 4
    rounds: int = 5
    rate: float = 3e-4
    price: float = 0.15
    """a: nats a word."""
    batch: int = 8
    """Prompts of a step."""
    new: int = 2
    """Passes over a round's own prompts."""
    old: int = 1
    """Passes over at most `most` prompts of earlier rounds."""
    most: int = 48
    rank: int = 16
    """Of adapters; 0: all weights are trained."""
    longest: int = 80
    temperature: float = 0.7
    clip: float = 5.0
    seed: int = 0


@dataclass(frozen=True)
class Drawn:
    """One prompt's draws, their words [n], and their log-probabilities under the reference [n]."""

    prompt: Tokens
    answers: list[Tokens]
    words: np.ndarray
    reference: torch.Tensor

    @property
    def texts(self) -> list[tuple[Tokens, Tokens]]:
        return [(self.prompt, answer) for answer in self.answers]


class Model:
    """SmolLM2 with adapters or all weights trained, and a copy that draws."""

    def __init__(self, trial: Trial, folder: Path | None = None) -> None:
        folder, self.trial = folder or fetch("smollm2"), trial
        torch.manual_seed(trial.seed)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        base = AutoModelForCausalLM.from_pretrained(folder)
        self.adapted: Any = add_adapters(base, rank=trial.rank, alpha=float(trial.rank)) if trial.rank else base
        self.drawing = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self.scorer = ResponseScorer(self.adapted, temperature=trial.temperature).eval()
        self.trained = [one for one in self.adapted.parameters() if one.requires_grad]

    @torch.no_grad()
    def of_reference(self, texts: Sequence[tuple[Tokens, Tokens]]) -> torch.Tensor:
        with self.adapted.disable_adapter():
            return self.scorer.log_probs(texts)[0]

    def prompt(self, asked: str) -> Tokens:
        turns = [{"role": "user", "content": asked + SUFFIX}]
        return tuple(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))

    def text(self, answer: Tokens) -> str:
        return str(self.tokenizer.decode(answer, skip_special_tokens=True))

    def words(self, answer: Tokens) -> int:
        return words(self.text(answer))

    @torch.no_grad()
    def draw(self, prompts: Sequence[Tokens], n: int, seed: int) -> list[list[Tokens]]:
        """n answers to each prompt."""
        if self.trial.rank:
            self.adapted.merge_adapter()
        own = dict(self.drawing.named_parameters())
        for name, tensor in (self.adapted.get_base_model() if self.trial.rank else self.adapted).named_parameters():
            if "lora_" not in name:
                own[name.replace(".base_layer", "")].copy_(tensor)
        if self.trial.rank:
            self.adapted.unmerge_adapter()
        generator, out = torch.Generator().manual_seed(seed), [[] for _ in prompts]  # type: ignore[var-annotated]
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        for begin in range(0, len(order), 16):
            places = order[begin : begin + 16]
            flat = self._batch([prompts[place] for place in places], n, generator)
            for index, place in enumerate(places):
                out[place] = flat[index * n : (index + 1) * n]
        return out

    def _batch(self, prompts: Sequence[Tokens], n: int, generator: torch.Generator) -> list[Tokens]:
        width = max(map(len, prompts))
        ids = torch.tensor([(self.end,) * (width - len(one)) + one for one in prompts])
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts])
        place = (mask.cumsum(1) - 1).clamp_min(0)
        said = self.drawing(input_ids=ids, attention_mask=mask, position_ids=place, use_cache=True, logits_to_keep=1)
        cache, logits = said.past_key_values, said.logits[:, -1].repeat_interleave(n, 0)
        cache.batch_repeat_interleave(n)
        mask, place = mask.repeat_interleave(n, 0), place[:, -1:].repeat_interleave(n, 0)
        answers: list[list[int]] = [[] for _ in range(len(prompts) * n)]
        going = list(range(len(answers)))
        for left in reversed(range(self.trial.longest)):
            chances = (logits.float() / self.trial.temperature).softmax(-1)
            token = torch.multinomial(chances, 1, generator=generator)[:, 0]
            for index, one in zip(going, token.tolist(), strict=True):
                answers[index].append(one)
            keep = [row for row, one in enumerate(token.tolist()) if one != self.end]
            if not keep or not left:
                break
            rows = torch.tensor(keep)
            cache.batch_select_indices(rows)
            going = [going[row] for row in keep]
            mask, place, token = torch.cat([mask[rows], mask.new_ones((len(keep), 1))], 1), place[rows] + 1, token[rows]
            logits = self.drawing(
                input_ids=token[:, None], attention_mask=mask, position_ids=place, past_key_values=cache, use_cache=True
            ).logits[:, -1]
        return [tuple(one) for one in answers]


def asked_once(file: Path) -> list[str]:
    """Questions of one turn and at most 18 words in a file of pairs, each once, sorted."""
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    rows = [json.loads(line)["prompt"] for line in content.decode().splitlines()]
    turns = [row.split("\n\nHuman: ")[1].split("\n\nAssistant:") for row in rows if row.count("\n\nHuman: ") == 1]
    return sorted({one.strip() for one, *_ in turns if 0 < len(one.split()) <= 18})


def asked_prompts(file: Path) -> list[str]:
    """The same in an order drawn by seed 0."""
    asked = asked_once(file)
    return [asked[index] for index in np.random.default_rng(0).permutation(len(asked))]


def drawn(model: Model, prompts: Sequence[Tokens], seed: int) -> list[Drawn]:
    answers = model.draw(prompts, model.trial.draws, seed)
    texts = [(prompt, answer) for prompt, row in zip(prompts, answers, strict=True) for answer in row]
    reference = model.of_reference(texts).reshape(len(prompts), -1)
    return [
        Drawn(prompt, row, np.array([model.words(one) for one in row], float), known)
        for prompt, row, known in zip(prompts, answers, reference, strict=True)
    ]


def moved(rows: Sequence[Drawn], ratios: np.ndarray) -> dict[str, float]:
    """Mean words with their standard error over prompts, KL in nats, slope of h on w within prompts. [prompts, n]"""
    count = np.stack([row.words for row in rows])
    w, h = count - count.mean(1, keepdims=True), ratios - ratios.mean(1, keepdims=True)
    means = count.mean(1)
    return {
        "words": float(means.mean()),
        "error": float(means.std(ddof=1) / len(means) ** 0.5),
        "kl": float(ratios.mean()),
        "slope": float((h * w).sum() / (w**2).sum()),
    }


def fit(model: Model, optimizer: torch.optim.Optimizer, rows: Sequence[Drawn]) -> list[list[float]]:
    """One pass over `rows`. -> of each step loss, loss of the reference, h of the shortest and of the longest draws"""
    trial, curve = model.trial, []
    steps = max(1, round(len(rows) / trial.batch))
    for step, part in enumerate(np.array_split(np.arange(len(rows)), steps)):
        warm = max(1, round(0.1 * steps))
        factor = (step + 1) / warm if step < warm else 1.0 - (step - warm) / (steps - warm)
        chosen = [rows[index] for index in part]
        h = model.scorer.log_probs([text for row in chosen for text in row.texts])[0].reshape(len(chosen), -1)
        h = h - torch.stack([row.reference for row in chosen])
        costs = torch.tensor(np.stack([row.words for row in chosen]), dtype=torch.float32) * trial.price
        shape = trial.draws - 1
        losses = [centred_losses(one, cost, temperature=1.0).sum() / shape for one, cost in zip(h, costs, strict=True)]
        loss = torch.stack(losses).mean()
        for group in optimizer.param_groups:
            group["lr"] = trial.rate * factor
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.trained, trial.clip)
        optimizer.step()
        said, place = h.detach(), torch.arange(len(chosen))
        at_reference = costs.var(dim=1).mean()
        ends = [said[place, costs.argmin(1)].mean(), said[place, costs.argmax(1)].mean()]
        curve.append([round(float(one), 3) for one in (loss.detach(), at_reference, *ends)])
    return curve


def run(trial: Trial, file: Path) -> dict[str, Any]:
    """The whole trial."""
    torch.set_num_threads(1)
    model, began = Model(trial), time.process_time()
    prompts = [model.prompt(one) for one in asked_prompts(file)]
    held, asked = prompts[:HELD], prompts[HELD:]
    generator = np.random.default_rng(trial.seed)

    def held_words() -> np.ndarray:
        return np.array([[model.words(one) for one in row] for row in model.draw(held, 2, 99)]).mean(1)

    before = held_words()
    optimizer = torch.optim.AdamW(model.trained, lr=trial.rate, betas=(0.9, 0.99), weight_decay=0.0)
    known: list[Drawn] = []
    rounds: list[dict[str, Any]] = []
    for number in range(trial.rounds):
        new = drawn(model, asked[number * trial.prompts : (number + 1) * trial.prompts], trial.seed + number)
        with torch.no_grad():
            policy = model.scorer.log_probs([text for row in new for text in row.texts])[0].reshape(len(new), -1)
        fresh = moved(new, (policy - torch.stack([row.reference for row in new])).numpy())
        old = [known[index] for index in generator.permutation(len(known))[: trial.most]]
        rows = [*new * trial.new, *old * trial.old]
        curve = fit(model, optimizer, [rows[index] for index in generator.permutation(len(rows))])
        rounds.append({"fresh": fresh, "curve": curve})
        print(json.dumps({"round": number + 1, **fresh, "steps": len(curve)}), flush=True)
        known += new
    after = held_words()
    difference = after - before
    return {
        "trial": asdict(trial),
        "rounds": rounds,
        "held_out": {
            "prompts": HELD,
            "reference": float(before.mean()),
            "policy": float(after.mean()),
            "difference": float(difference.mean()),
            "error": float(difference.std(ddof=1) / HELD**0.5),
        },
        "cpu_seconds": round(time.process_time() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.studies.real_model.own_draws")
    parser.add_argument("--data", type=Path, required=True, help="pairs with prompts of HH-RLHF, JSON lines")
    parser.add_argument("--out", type=Path, required=True)
    for one in fields(Trial):
        parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default)
    given = vars(parser.parse_args())
    file, out = given.pop("data"), given.pop("out")
    out.write_text(json.dumps(run(Trial(**given), file), indent=1) + "\n")


if __name__ == "__main__":
    main()
