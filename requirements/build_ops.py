"""Compiles DeepSpeed's CPU communication op once, so that no test and no run waits for a compiler.

DeepSpeed builds it on first use and keeps it in torch's extension cache. Without a C++ compiler the DeepSpeed engines
cannot run on CPU; everything else works, so this is a notice and not an error.
"""

from __future__ import annotations

import os
import shutil
import sys


def main() -> None:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if shutil.which("c++") is None and shutil.which("g++") is None:
        print("no C++ compiler: trainer.engine zero1 to zero3 will not run on CPU (install g++)", file=sys.stderr)
        return
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    from actors.deepspeed_engine import wait_for_builds

    wait_for_builds()
    ShareMemCommBuilder().load(verbose=False)


if __name__ == "__main__":
    main()
