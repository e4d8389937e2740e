"""The newest state of a scorer's fit in one file of safetensors, so that a process that died continues where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from pddpo_ray.storage.whole_files import written_aside

MOMENTS = ("exp_avg", "exp_avg_sq")
FILE = "checkpoint.safetensors"


@dataclass
class Progress:
    """What a fit has done: steps, and the loss and accuracy of each."""

    steps: int = 0
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class FitCheckpoints:
    """Writes a fit's state to `folder` at every `every`-th step."""

    folder: Path
    every: int
    say: Callable[[str], None] = lambda line: None

    def read(self, parameters: Mapping[str, Tensor], optimizer: torch.optim.AdamW) -> Progress:
        """Loads the stored state into parameters and optimiser; without one, no step is done."""
        from safetensors import safe_open

        path = self.folder / FILE
        if not path.exists():
            return Progress()
        with safe_open(path, framework="pt") as file, torch.no_grad():
            done = Progress(**json.loads(file.metadata()["progress"]))
            for name, parameter in parameters.items():
                parameter.copy_(file.get_tensor(name))
                state = {key: file.get_tensor(f"{key}/{name}").to(parameter.device) for key in MOMENTS}
                optimizer.state[parameter] = {"step": torch.tensor(float(done.steps)), **state}
        return done

    def write(self, parameters: Mapping[str, Tensor], optimizer: torch.optim.AdamW, done: Progress) -> None:
        """After a step; whole or not at all."""
        if done.steps % self.every:
            return
        from safetensors.torch import save_file

        tensors = dict(parameters)
        for key in MOMENTS:
            tensors |= {f"{key}/{name}": optimizer.state[parameter][key] for name, parameter in parameters.items()}
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        with written_aside(self.folder / FILE) as aside:
            save_file(plain, aside, metadata={"progress": json.dumps(vars(done))})
        self.say(f"step {done.steps}: loss {done.losses[-1]:.4f}, checkpoint written")
