"""`python -m bench run [--only ID] [--json]`: speed against a plain implementation, measured in the same run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence

from bench import cost_stage
from bench.ratio import Ratio

BENCHMARKS: Mapping[str, Callable[[int], Ratio]] = {
    "C2": lambda repeats: cost_stage.run(repeats=repeats),
    "C2-32k": lambda repeats: cost_stage.run(32_000, repeats, "C2-32k"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("command", choices=["run"])
    parser.add_argument("--only", choices=sorted(BENCHMARKS), help="one benchmark")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args(arguments)
    for name in [options.only] if options.only else BENCHMARKS:
        result = BENCHMARKS[name](options.repeats)
        if options.json:
            print(json.dumps(result.as_json()), flush=True)
        else:
            low, high = result.spread
            print(f"{result.id:7s} {result.ratio:5.2f} ({low:.2f} to {high:.2f})  {result.what}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
