"""A driver in a process of its own that kills itself when a phase begins: python -m tests.chaos.driver ..."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

from actors import launch
from pddpo_ray.config import load
from tests.support.kill_points import KillPoint, KillPoints


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--at", nargs=2, metavar=("ROUND", "PHASE"))
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    points = [KillPoint(int(arguments.at[0]), arguments.at[1], "driver")] if arguments.at else []
    listener = KillPoints(points, kill=lambda victim: os.kill(os.getpid(), signal.SIGKILL))
    config = load(arguments.recipe, arguments.overrides)
    print(json.dumps(launch.run_recipe(config, arguments.run, resume=arguments.resume, progress=listener)))


if __name__ == "__main__":
    main()
