"""`pddpo chat`: try a policy of a run in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pddpo_ray.cli.runs.recipe_of_run import find_run, store_of
from pddpo_ray.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pddpo_ray.records import Message
    from pddpo_ray.text.renderer import Renderer

EXAMPLES = 4
"""Questions of a text world that are shown before a conversation: its model knows no others."""


def chat(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    round_: Annotated[
        int | None, typer.Option("--round", min=1, help="The policy of this round, released or not.", metavar="K")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Ask this, print the answer and end.", metavar="TEXT")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of one answer; default: as in the run (rollout.max_tokens).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first answer; later ones count up.")] = 0,
    journal: Annotated[str | None, typer.Option(help="Database URL, where the recipe names one.")] = None,
) -> None:
    """Talk with the released policy, or with a round's.

    An empty line starts a new conversation, Ctrl-D ends.
    """
    stored_run = find_run(run, journal)
    if stored_run.config.policies != "language models":
        policies = stored_run.config.policies
        raise UserError(f"the policies of {run} are {policies}, not language models: chat needs one")
    # Imported here: torch and transformers take seconds to load.
    from pddpo_ray.journal.reading import JournalReader
    from pddpo_ray.serving.catalog import read_catalog
    from pddpo_ray.serving.export import policy_to_take, renderer_of, weights_of
    from pddpo_ray.storage.artifacts import ArtifactStore
    from pddpo_ray.storage.whole_files import ARTIFACTS

    artifacts = ArtifactStore(stored_run.folder / ARTIFACTS)
    with store_of(stored_run, to_read=True) as store:
        policy = policy_to_take(read_catalog(store), run, round_)
        questions = [prompt.text for prompt in JournalReader(store.engine, store.run).prompts().values()]
    stored = artifacts.stored(policy.version.path)
    weights, renderer = weights_of(artifacts, policy), renderer_of(stored)
    most = max_tokens or stored_run.config.rollout.max_tokens
    talk = Conversation(stored, weights, renderer, most, seed, stored_run.config.policy.temperature)
    if prompt is not None:
        talk.ask(prompt, _print)
        return
    typer.echo(
        f"round {policy.round} ({policy.release}) of {run}; an empty line starts a new conversation, Ctrl-D ends",
        err=True,
    )
    if getattr(stored_run.config.world, "kind", None) == "text" and questions:
        typer.echo("this toy language knows questions such as:", err=True)
        typer.echo("".join(f"  {question}\n" for question in spread(questions)), nl=False, err=True)
    while (question := _line()) is not None:
        if question:
            talk.ask(question, _print)
        else:
            talk.begin_anew()


def spread(questions: Sequence[str]) -> list[str]:
    """`EXAMPLES` of them, evenly spaced by alphabet, where neighbours are about one subject."""
    ordered = sorted(set(questions))
    return ordered[:: max(1, len(ordered) // EXAMPLES)][:EXAMPLES]


class Conversation:
    """Turns with one model; every answer is drawn from the policy with a seed of its own."""

    def __init__(
        self,
        stored: Path,
        weights: Mapping[str, Any],
        renderer: Renderer,
        max_tokens: int,
        seed: int,
        temperature: float = 1.0,
    ) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

        from pddpo_ray.rollout.checkpoint import load_tokenizer

        self._tokenizer = load_tokenizer(stored)
        config = AutoConfig.from_pretrained(stored)
        self._model = AutoModelForCausalLM.from_config(config).eval()
        self._model.load_state_dict(weights, strict=False)
        self._model.tie_weights()
        # whatever the reference was drawn with: an answer is one of the policy's
        self._model.generation_config = GenerationConfig(**renderer.sampling(temperature))
        context = int(getattr(config, "max_position_embeddings", sys.maxsize))
        if max_tokens >= context:
            raise UserError(
                f"--max-tokens {max_tokens}: prompt and answer together have room for {context} tokens in this model;"
                f" take {context // 2} or fewer"
            )
        self._room = context - max_tokens
        self._renderer, self._max_tokens, self._seed = renderer, max_tokens, seed
        self._turns: list[Message] = []

    def begin_anew(self) -> None:
        self._turns = []

    def ask(self, text: str, show: Callable[[str], None]) -> None:
        """Hand the answer to `show` piece by piece as it is written, without control characters. UserError for a text
        that the model has no room for; the oldest turns are left out where the conversation gets too long."""
        import torch
        from transformers import TextStreamer

        from pddpo_ray.records import Message
        from pddpo_ray.report.text import visible

        self._turns.append(Message("user", text))
        while len(ids := self._renderer.prompt_ids(self._turns)) > self._room:
            if len(self._turns) == 1:
                raise UserError(
                    f"the text has {len(ids)} tokens, the model has room for {self._room} before its answer"
                )
            self._turns = self._turns[2:]
        torch.manual_seed(self._seed)
        self._seed += 1
        pieces: list[str] = []

        class Shown(TextStreamer):
            def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
                pieces.append(visible(text))
                show(pieces[-1])

        input_ids = torch.tensor([ids])
        with torch.no_grad():
            self._model.generate(
                input_ids,
                attention_mask=torch.ones_like(input_ids),
                max_new_tokens=self._max_tokens,
                streamer=Shown(self._tokenizer, skip_prompt=True, skip_special_tokens=True),
            )
        show("\n")
        answer = self._renderer.without_lead(self._turns, "".join(pieces))
        self._turns.append(Message("assistant", answer))


def _print(piece: str) -> None:
    typer.echo(piece, nl=False)


def _line() -> str | None:
    """The next line that a person writes; None at the end of input."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        typer.echo()
        return None
