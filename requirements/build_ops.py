"""Compiles DeepSpeed's CPU communication op once, so that no test and no run waits for a compiler.

DeepSpeed builds it on first use and keeps it in torch's extension cache. Without a C++ compiler the DeepSpeed engines
cannot run on CPU; everything else works, so this is a notice and not an error.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

STALE_LOCK_S = 900
"""A build takes about a minute; a lock that is much older belongs to a build that was killed."""


def main() -> None:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if shutil.which("c++") is None and shutil.which("g++") is None:
        print("no C++ compiler: trainer.engine zero1 to zero3 will not run on CPU (install g++)", file=sys.stderr)
        return
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder
    from torch.utils.cpp_extension import get_default_build_root

    remove_stale_locks(Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root()))
    ShareMemCommBuilder().load(verbose=False)


def remove_stale_locks(cache: Path) -> None:
    """Remove locks that killed builds left behind: whoever needs the op next would wait for them for ever."""
    for lock in cache.glob("**/deepspeed_shm_comm/lock"):
        if time.time() - lock.stat().st_mtime > STALE_LOCK_S:
            lock.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
