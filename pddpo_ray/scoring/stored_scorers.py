"""Any stored scorer: models trained here, Beaver's score-head layout, and every Hugging Face sequence classifier.

    cost = load_scorer("models/beaver-7b-v1.0-cost")
    cost.score_texts([("how do i light the stove ?", "use a long match .")])      # -> array of one number

How texts become tokens is the scorer's *template*:

    tokens     prompt and answer as the policy sees them: in its chat template, or where it has none between beginning
               and end of sequence
    safe-rlhf  "BEGINNING OF CONVERSATION: USER: {prompt} ASSISTANT:{answer}" and the end of sequence (Beaver)
    chat       the tokenizer's own chat template
    pair       prompt and answer as two segments (BERT and its kin)
    anything else with {prompt} and {answer} in it is taken literally, the end of sequence behind it

A scorer is given the messages of a conversation, never a prompt that is rendered already; {prompt} and the first of two
segments are the question as people read it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pddpo_ray.config import ScorerConfig
from pddpo_ray.errors import UserError
from pddpo_ray.records import Array, Message, Response
from pddpo_ray.rollout.checkpoint import fingerprint
from pddpo_ray.scoring.interface import AskedText
from pddpo_ray.storage.checkpoints import checkpoint_folder
from pddpo_ray.text.renderer import Renderer
from pddpo_ray.text.templates import TEMPLATES, as_dicts, for_reading, rendered, template_named
from pddpo_ray.training.batches import collate, padded_passes
from pddpo_ray.training.device import PASS_TOKENS, device_for
from pddpo_ray.training.models.score_model import read_score_model, safetensors_files
from pddpo_ray.training.passes.log_probs import device_of

LONGEST = 4096
"""Tokens of a text where neither model nor tokenizer states a limit."""

Encoded = dict[str, list[int]]
Forward = Callable[[list[Encoded]], Tensor]
"""Raw scores of encoded texts. -> [n]"""


class NeuralScorer:
    """A loaded model as `AnswerScorer`. `truncated` counts the texts that were too long."""

    def __init__(
        self,
        name: str,
        tokenizer: Any,
        model: nn.Module,
        forward: Forward,
        template: str,
        settings: ScorerConfig,
        max_tokens: int,
    ) -> None:
        self.name = name
        self.model = model
        self.template = template
        self.fingerprint = fingerprint(tokenizer)
        """What decides how text becomes tokens; equal to a run's, the run's own token ids are used."""
        self.truncated = 0
        self._tokenizer, self._forward, self._settings, self._max_tokens = tokenizer, forward, settings, max_tokens

    def score_texts(self, texts: Sequence[AskedText]) -> Array:
        """-> [n]"""
        return self._score_rows([self._cut_row(row) for row in encoded_texts(self._tokenizer, self.template, texts)])

    def score(self, responses: Sequence[Response]) -> Array:
        """Token ids are used as they are by a scorer with template `tokens`, which has the run's tokenizer. -> [n]"""
        if self.template != "tokens":
            return self.score_texts([(response.prompt.turns, response.text) for response in responses])
        return self._score_rows(
            [self._cut_row({"input_ids": [*response.prompt.token_ids, *response.token_ids]}) for response in responses]
        )

    def _score_rows(self, rows: list[Encoded]) -> Array:
        """Equal texts are scored once, in passes of similar length and of as many tokens as suit the device."""
        keys = [tuple(map(tuple, row.values())) for row in rows]
        unique = dict(zip(keys, rows, strict=True))
        order = sorted(unique, key=lambda key: len(key[0]))
        values: dict[tuple[tuple[int, ...], ...], float] = {}
        tokens = PASS_TOKENS[device_of(self.model).type]
        for cut_out in padded_passes([len(key[0]) for key in order], tokens, self._settings.batch):
            part = order[cut_out]
            with torch.no_grad():
                scores = self._forward([unique[key] for key in part]).double().cpu()
            values.update(zip(part, scores.tolist(), strict=True))
        raw = np.array([values[key] for key in keys], dtype=np.float64)
        return self._settings.scale * raw + self._settings.shift

    def _cut_row(self, row: Encoded) -> Encoded:
        self.truncated += len(row["input_ids"]) > self._max_tokens
        return cut(row, self._max_tokens)


def cut(row: Encoded, max_tokens: int) -> Encoded:
    """Shortens a long text to its first token and its last ones: a score is read at the end."""
    if len(row["input_ids"]) <= max_tokens:
        return row
    return {name: [values[0], *values[len(values) - max_tokens + 1 :]] for name, values in row.items()}


def load_scorer(source: str | Path, settings: ScorerConfig | None = None, dtype: str = "float32") -> NeuralScorer:
    """The scorer in a folder, or of that name on the Hugging Face hub, on a GPU where there is one.

    Raises UserError for a folder that holds none, pickled weights, an unknown label or a template without a slot.
    """
    from transformers import AutoConfig

    settings = settings or ScorerConfig()
    folder = checkpoint_folder(source)
    safetensors_files(folder)
    config = AutoConfig.from_pretrained(folder)
    architecture = (getattr(config, "architectures", None) or [""])[0]
    tokenizer = _tokenizer(folder)
    if architecture.endswith("ForScore"):
        model, forward = _score_head(folder, dtype)
        template = getattr(config, "score_template", "safe-rlhf")
    elif architecture.endswith("ForSequenceClassification"):
        model, forward = _classifier(folder, tokenizer, settings.label, dtype)
        template = "chat" if tokenizer.chat_template else "pair"
    else:
        raise UserError(
            f"{source}: {architecture or 'a model without a stated architecture'} is no scorer; give a model with a"
            " score head (…ForScore) or a sequence classifier (…ForSequenceClassification)"
        )
    template = settings.template or template
    check_template(template, tokenizer, source)
    longest = _limit(settings, config, tokenizer)
    return NeuralScorer(str(source), tokenizer, model, forward, template, settings, longest)


def encoded(tokenizer: Any, template: str, question: str | Sequence[Message], answer: str) -> Encoded:
    """One text as token ids (and segments, where the tokenizer has them). `question` as text is one question."""
    return encoded_texts(tokenizer, template, [(question, answer)])[0]


def encoded_texts(tokenizer: Any, template: str, texts: Sequence[AskedText]) -> list[Encoded]:
    """The same of many, in one call of the tokenizer: one call for each takes four times as long."""
    dialogues = [(_turns(question), answer) for question, answer in texts]
    if template == "tokens":
        return [{"input_ids": _policy_token_ids(tokenizer, turns, answer)} for turns, answer in dialogues]
    if not dialogues:
        return []
    if template == "pair":
        both = tokenizer([for_reading(turns) for turns, _ in dialogues], [answer.strip() for _, answer in dialogues])
        return [dict(zip(both, row, strict=True)) for row in zip(*both.values(), strict=True)]
    if template == "chat":
        form = {"chat_template": template_named("tokenizer", tokenizer), "tokenize": False}
        messages = [as_dicts([*turns, Message("assistant", answer.strip())]) for turns, answer in dialogues]
        rendered_texts = [tokenizer.apply_chat_template(dialogue, **form) for dialogue in messages]
        return [{"input_ids": ids} for ids in tokenizer(rendered_texts, add_special_tokens=False)["input_ids"]]
    rows = tokenizer([_filled(template, turns, answer.strip()) for turns, answer in dialogues])["input_ids"]
    end = tokenizer.eos_token_id
    return [{"input_ids": ids if end is None or ids[-1:] == [end] else [*ids, end]} for ids in rows]


def _turns(question: str | Sequence[Message]) -> tuple[Message, ...]:
    return (Message("user", question),) if isinstance(question, str) else tuple(question)


def _filled(template: str, turns: Sequence[Message], answer: str) -> str:
    if template == "safe-rlhf":
        return rendered(TEMPLATES[template], turns) + answer
    slots = {"prompt": for_reading(turns), "answer": answer}
    return re.sub(r"\{(prompt|answer)\}", lambda slot: slots[slot[1]], template)


def _policy_token_ids(tokenizer: Any, turns: Sequence[Message], answer: str) -> list[int]:
    if tokenizer.chat_template:
        renderer = Renderer(tokenizer, "tokenizer")
        return [*renderer.prompt_ids(turns), *renderer.answer_ids(turns, answer)]
    words = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (for_reading(turns), answer)]
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    return [*start, *words[0], *words[1], tokenizer.eos_token_id]


def check_template(template: str, tokenizer: Any, source: str | Path) -> None:
    """Raises UserError where this tokenizer cannot fill the template."""
    if template == "chat" and not tokenizer.chat_template:
        raise UserError(f"{source}: template chat needs a tokenizer with a chat template; choose another template")
    if template in ("tokens", "safe-rlhf") and tokenizer.eos_token_id is None:
        raise UserError(f"{source}: template {template} ends with the end of sequence, which the tokenizer lacks")
    names = ("tokens", "safe-rlhf", "chat", "pair")
    if template not in names and not ("{prompt}" in template and "{answer}" in template):
        raise UserError(f"{source}: template {template!r} is no known name and lacks {{prompt}} or {{answer}}")


# --- the two kinds of model ---------------------------------------------------------------------------------------


def _score_head(folder: Path, dtype: str) -> tuple[nn.Module, Forward]:
    model = read_score_model(folder, dtype=dtype).to(device_for())

    def forward(rows: list[Encoded]) -> Tensor:
        # With an empty prompt every token is a response token, and the score is read at the last one.
        scores: Tensor = model(collate([((), tuple(row["input_ids"])) for row in rows]).to(device_of(model)))
        return scores

    return model, forward


def _classifier(folder: Path, tokenizer: Any, label: str | None, dtype: str) -> tuple[nn.Module, Forward]:
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=getattr(torch, dtype), use_safetensors=True
    )
    model = model.eval().to(device_for())
    column = label_index(model.config.id2label, label, folder)

    def together(rows: list[Encoded]) -> Tensor:
        batch = tokenizer.pad(rows, return_tensors="pt", padding_side="right")
        return log_odds(model(**batch.to(model.device)).logits.float(), column)

    def forward(rows: list[Encoded]) -> Tensor:
        if tokenizer.pad_token_id is not None and model.config.pad_token_id == tokenizer.pad_token_id:
            return together(rows)
        # Without a padding token of its own a decoder cannot tell where a padded text ends: one at a time.
        single = [{name: torch.tensor([values]).to(model.device) for name, values in row.items()} for row in rows]
        return torch.cat([log_odds(model(**row).logits.float(), column) for row in single])

    return model, forward


def label_index(names: dict[int, str], label: str | None, folder: Path) -> int | None:
    """Column of the label whose log-odds are the score; None for a classifier with a single output."""
    if label is None:
        if len(names) > 2:
            raise UserError(f"{folder} has {len(names)} labels ({', '.join(names.values())}): say which with `label`")
        return 1 if len(names) == 2 else None
    indices = [int(index) for index, name in names.items() if name.lower() == label.lower()]
    if not indices:
        raise UserError(f"{folder} has no label {label}; it has {', '.join(names.values())}")
    return indices[0] if len(names) > 1 else None


def log_odds(logits: Tensor, column: int | None) -> Tensor:
    """log p(label) / p(other labels) of softmax outputs, or the only output itself. [n, k] -> [n]"""
    if column is None:
        return logits[:, 0]
    other_columns = [index for index in range(logits.shape[1]) if index != column]
    return logits[:, column] - torch.logsumexp(logits[:, other_columns], dim=1)


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    if not (folder / "tokenizer_config.json").exists():
        raise UserError(f"{folder} has no tokenizer: put the one that the scorer was trained with beside its weights")
    return AutoTokenizer.from_pretrained(folder)


def _limit(settings: ScorerConfig, config: Any, tokenizer: Any) -> int:
    config_limits = [getattr(config, name, None) for name in ("score_max_tokens", "max_position_embeddings")]
    limits = [settings.max_tokens, *config_limits, tokenizer.model_max_length]
    return min(int(value) for value in (*limits, LONGEST) if value is not None and value > 0)
