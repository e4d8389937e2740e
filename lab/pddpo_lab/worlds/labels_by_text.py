"""A text world's labels for programs that know prompts and answers as text: drawn from its truth, seeded, repeatable.

The n-th label of an answer follows from seed, answer and n alone. A caller that does not say which it wants gets the
next, so that asking again gives an independent label.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from pddpo_ray.errors import UserError
from pddpo_ray.records import LabelledPair, Pair, Response, Verdict
from pddpo_ray.worlds.text.prepared_world import PreparedTextWorld


class LabelsByText:
    """Labels of one world. Text that is no answer of its grammar is one outcome, with the worst reward and cost."""

    def __init__(self, prepared: PreparedTextWorld, seed: int) -> None:
        world = prepared.world
        self._world, self._labeller, self._seed = world, prepared.labeller(), seed
        self._prompts = {prompt.text: prompt for prompt in world.prompts}
        self._answers = {text: index for index, text in enumerate(world.grammar.answer_texts)}
        self._given: Counter[tuple[str, ...]] = Counter()
        self._lock = threading.Lock()

    def safety(self, prompt: str, answer: str, count: int = 1, draw: int | None = None) -> tuple[int, list[Verdict]]:
        """Number of the first label, and `count` labels. UserError for a prompt that is not the world's."""
        response = self._response(prompt, answer)
        first = self._first(("safety", response.id), count, draw)
        items = [_numbered(response, number) for number in range(first, first + count)]
        return first, [one.labels[0] for one in self._labeller.safety(items, 1, self._seed)]

    def compare(
        self, prompt: str, first: str, second: str, count: int = 1, draw: int | None = None
    ) -> tuple[int, list[LabelledPair]]:
        """The same for pairs: which answer is better, and which is costlier."""
        sides = (self._response(prompt, first), self._response(prompt, second))
        name = " ".join(side.id for side in sides)
        number = self._first(("compare", name), count, draw)
        pairs = [Pair(f"{name}#{own}", *sides) for own in range(number, number + count)]
        return number, self._labeller.compare(pairs, self._seed)

    def _response(self, prompt: str, answer: str) -> Response:
        known = self._prompts.get(_plain(prompt))
        if known is None:
            raise UserError(f"{prompt[:80]!r} is no prompt of this world: `pddpo world export` writes them all")
        text = _plain(answer)
        index = self._answers.get(text)
        ids: Sequence[int] = () if index is None else self._world.grammar.answer_ids[index]
        return Response(f"{known.id}/{'other' if index is None else index}", known, tuple(ids), text, 0, self._seed)

    def _first(self, item: tuple[str, ...], count: int, draw: int | None) -> int:
        if draw is not None:
            return draw
        with self._lock:
            begin = self._given[item]
            self._given[item] += count
        return begin


def _numbered(response: Response, number: int) -> Response:
    return Response(f"{response.id}#{number}", response.prompt, response.token_ids, response.text, 0, response.seed)


def _plain(text: str) -> str:
    """Words with single spaces between them, as the grammar writes them."""
    return " ".join(text.split())
