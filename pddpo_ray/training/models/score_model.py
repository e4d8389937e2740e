"""A language model with a score head, and its layout on disk.

The layout is Beaver's: `model.*` holds the decoder under its Hugging Face names, `score_head.weight` [1, h] one linear
map on the last hidden state, `normalizer.mean`, `.var` [1] and `.count` what scores were divided by in training.
`config.json` is the decoder's, with `score_type` (reward, cost, critic), `do_normalize` and `score_template` beside.
Models that are trained here are written in the same layout, so that one loader reads both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pddpo_ray.errors import UserError
from pddpo_ray.training.batches import TextBatch

ScoreType = Literal["reward", "cost", "critic"]
EPSILON = 1e-8
"""Added to the standard deviation by which scores are divided, as in the original."""
IGNORED = ("rotary_emb.inv_freq", "lm_head.weight")
"""Endings of names that old checkpoints hold and no score needs."""


class Normalizer(nn.Module):
    """Fixed statistics of raw scores. A reward loses mean and scale, a cost its scale alone: its zero must stay."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, score_type: ScoreType) -> None:
        super().__init__()
        self.score_type = score_type
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("var", torch.ones(1))
        self.register_buffer("count", torch.zeros(1, dtype=torch.long))

    def forward(self, scores: Tensor) -> Tensor:
        """[n] -> [n]"""
        deviation = self.var.sqrt() + EPSILON
        if self.score_type == "reward":
            return (scores - self.mean) / deviation
        return scores / deviation if self.score_type == "cost" else scores


class ScoreModel(nn.Module):
    """A decoder whose last hidden state is mapped to one number."""

    def __init__(self, decoder: nn.Module, score_type: ScoreType, *, bias: bool = False, normalize: bool = False):
        super().__init__()
        self.model = decoder
        hidden = int(decoder.config.hidden_size)  # type: ignore[union-attr, arg-type]
        self.score_head = nn.Linear(hidden, 1, bias=bias)
        self.normalizer = Normalizer(score_type)
        self.normalize = normalize

    def forward(self, batch: TextBatch) -> Tensor:
        """Score of each text, read at its last token. -> [n] float32"""
        return self.scores_of(self.last_hidden(batch))

    def last_hidden(self, batch: TextBatch) -> Tensor:
        """What the head reads: the decoder's state at each text's last token. -> [n, h]"""
        last = batch.column.new_zeros(len(batch)).scatter_reduce(0, batch.row, batch.column, "amax") + 1
        return self._hidden_states(batch)[torch.arange(len(batch), device=last.device), last]

    def token_scores(self, batch: TextBatch) -> Tensor:
        """Score of what stands before each response token: a critic's values. -> [T] float32"""
        return self.scores_of(self._hidden_states(batch)[batch.row, batch.column])

    def scores_of(self, hidden: Tensor) -> Tensor:
        """[n, h], what the head reads -> [n] float32"""
        scores = self.score_head(hidden.to(self.score_head.weight.dtype))[..., 0].float()
        normalized: Tensor = self.normalizer(scores) if self.normalize else scores
        return normalized

    def _hidden_states(self, batch: TextBatch) -> Tensor:
        hidden: Tensor = self.model(input_ids=batch.ids, use_cache=False).last_hidden_state
        return hidden


def score_model_of(folder: Path, score_type: ScoreType, *, dtype: str = "float32", bias: bool = False) -> ScoreModel:
    """A new score model on the decoder of a language model's folder; its head is zero, so every score is 0."""
    from transformers import AutoModel

    with quietly():
        decoder = AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype))
    model = ScoreModel(decoder, score_type, bias=bias)
    for parameter in model.score_head.parameters():
        nn.init.zeros_(parameter)
    return model.to(getattr(torch, dtype))


def score_tensors(model: ScoreModel) -> dict[str, Tensor]:
    """All tensors under their names on disk, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def write_score_config(model: ScoreModel, folder: Path, template: str, max_tokens: int | None = None) -> None:
    """`config.json` beside the tensors; `template` says how texts become tokens (`scoring.stored_scorers`), of which
    `max_tokens` are read."""
    decoder: Any = model.model
    described = decoder.config.to_dict()
    described |= {
        "architectures": [type(decoder).__name__ + "ForScore"],
        "score_type": model.normalizer.score_type,
        "score_dim": 1,
        "bias": model.score_head.bias is not None,
        "do_normalize": model.normalize,
        "normalizer_type": "RunningMeanStd" if model.normalize else None,
        "score_template": template,
        **({} if max_tokens is None else {"score_max_tokens": max_tokens}),
    }
    (folder / "config.json").write_text(json.dumps(described, indent=2, default=str) + "\n")


def read_score_model(folder: Path, *, dtype: str = "float32", score_type: ScoreType | None = None) -> ScoreModel:
    """The score model in a folder of this layout. Raises UserError that names what is missing or does not fit."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    config_type = getattr(config, "score_type", None)
    kind: ScoreType = score_type or (config_type if config_type in ("reward", "cost", "critic") else "reward")
    extra = _tensors_beside_the_decoder(folder)
    head = extra.get("score_head.weight")
    if head is None or head.shape != (1, config.hidden_size):
        shape = None if head is None else tuple(head.shape)
        raise UserError(f"{folder}: score_head.weight must have shape (1, {config.hidden_size}), not {shape}")
    decoder = _read_decoder(folder, dtype)
    normalize = bool(getattr(config, "do_normalize", False))
    model = ScoreModel(decoder, kind, bias="score_head.bias" in extra, normalize=normalize)
    state = model.state_dict()
    with torch.no_grad():
        for name, tensor in extra.items():
            if name not in state or state[name].shape != tensor.shape:
                raise UserError(f"{folder}: {name} {tuple(tensor.shape)} is not part of a decoder with a score head")
            state[name].copy_(tensor)
    model.score_head.to(getattr(torch, dtype))
    return model.eval()


def safetensors_files(folder: Path) -> list[Path]:
    """The weight files of a folder. Raises UserError where there are none: pickled weights are not read."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = sorted(file.name for file in (*folder.glob("*.bin"), *folder.glob("*.pt")))
        advice = f"; convert {pickled[0]} to safetensors first, for pickles can run code" if pickled else ""
        raise UserError(f"{folder} holds no safetensors weights{advice}")
    return files


def _tensors_beside_the_decoder(folder: Path) -> dict[str, Tensor]:
    """Score head and normalizer: everything whose name does not begin with `model.`."""
    from safetensors import safe_open

    tensors: dict[str, Tensor] = {}
    for path in safetensors_files(folder):
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if not name.startswith("model.") and not name.endswith(IGNORED)]  # noqa: SIM118
            tensors |= {name: file.get_tensor(name) for name in names}
    return tensors


def _read_decoder(folder: Path, dtype: str) -> nn.Module:
    """The tensors under `model.`, all of them. transformers loads the shards but only warns of what is missing."""
    from transformers import AutoModel

    with quietly():
        decoder, report = AutoModel.from_pretrained(
            folder, dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True
        )
    lacking = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if lacking:
        raise UserError(f"{folder}: {len(lacking)} tensors of the decoder are missing or misshapen, first {lacking[0]}")
    loaded: nn.Module = decoder
    return loaded


@contextmanager
def quietly() -> Iterator[None]:
    """Without transformers' report of the tensors that a score model does not share with a language model."""
    from transformers import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
