"""C5: CPU seconds from the start of a Python process to the first token of a stored policy.

`python -m bench.cold_start transformers|vllm FOLDER` is one such process; both must answer with a token of the same
model. Ours is the engine of a run in one process that can do without vLLM (`rollout.engine: transformers`); the peer is
vLLM by itself in one process, with nothing compiled and a small cache. The clock is the operating system's account of
the child and of everything that it started.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.ratio import Ratio, of_pairs

AIM_S = 7.0
"""CPU seconds that ours may take, of which importing torch and transformers is most."""


def run(repeats: int = 5) -> Ratio:
    """vLLM's CPU seconds over ours, in the order peer, ours, ours, peer."""
    from bench.rollout import Setting, stored

    with tempfile.TemporaryDirectory() as place:
        stored(Setting().model(), Path(place))
        pairs = []
        for _ in range(repeats):
            first, second, third, fourth = (
                seconds(side, Path(place)) for side in ("vllm", *["transformers"] * 2, "vllm")
            )
            pairs.append(((first + fourth) / 2, (second + third) / 2))
    peer, ours = np.median(pairs, axis=0)
    return of_pairs(
        "C5",
        "process start to first token: vLLM / ours in process",
        pairs,
        details={"peer CPU-s": float(peer), "ours CPU-s": float(ours), "ours of the aim": float(ours) / AIM_S},
    )


def seconds(engine: str, folder: Path) -> float:
    """CPU seconds of one process with its children. Raises RuntimeError with its last words if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    quiet = {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}
    ended = subprocess.run(
        [sys.executable, "-m", "bench.cold_start", engine, str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, **quiet},
        timeout=600,
        check=False,
    )
    if ended.returncode != 0 or not ended.stdout.strip().endswith("one token"):
        raise RuntimeError(f"{engine} gave no token: {ended.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_token_of_ours(folder: Path) -> int:
    from pddpo_ray.records import Decoding, Prompt
    from pddpo_ray.rollout.transformers_engine import TransformersEngine
    from pddpo_ray.storage.artifacts import ArtifactStore
    from pddpo_ray.training.local import store_reference

    store = ArtifactStore(folder / "artifacts")
    engine = TransformersEngine("bench", folder / "model", store)
    engine.deliver(store_reference(store, folder / "model"))
    [[(tokens, _, _)]] = engine.sample([Prompt("p", (5, 7, 11), "")], [0], 1, Decoding(max_tokens=1))
    return len(tokens)


def first_token_of_vllm(folder: Path) -> int:
    from pddpo_ray.rollout.vllm_start import prepare_process

    prepare_process(1)
    from vllm import LLM, SamplingParams

    engine = LLM(
        str(folder / "model"), dtype="float32", max_model_len=256, enforce_eager=True, kv_cache_memory_bytes=2**26
    )
    [answer] = engine.generate(
        [{"prompt_token_ids": [5, 7, 11]}], SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False
    )
    return len(answer.outputs[0].token_ids)


if __name__ == "__main__":
    engine, folder = sys.argv[1:]
    made = {"transformers": first_token_of_ours, "vllm": first_token_of_vllm}[engine](Path(folder))
    print("one token" if made == 1 else f"{made} tokens")
