"""Everything that watches a run while it goes on: progress on the screen, TensorBoard files in the run folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from pddpo_ray.loop.run import Event, Progress
from pddpo_ray.report.progress import make_progress

TENSORBOARD = "tensorboard"
"""Folder of the TensorBoard files inside a run folder."""


@contextmanager
def watching(run_dir: Path, *, tensorboard: bool = True, console: Console | None = None) -> Iterator[Progress]:
    """The `progress` to give to `run_recipe`.

    with watching(run_dir) as progress:
        run_recipe(config, run_dir, progress=progress)
    """
    with ExitStack() as open_ones:
        watchers: list[Progress] = [open_ones.enter_context(make_progress(console))]
        if tensorboard:
            from pddpo_ray.report.tensorboard import TensorBoardLog

            watchers.append(open_ones.enter_context(TensorBoardLog(run_dir / TENSORBOARD, run_dir.name)))

        def tell(event: Event) -> None:
            for watcher in watchers:
                watcher(event)

        yield tell
