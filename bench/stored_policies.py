"""C13: what one more policy takes on disk, as an adapter and as a whole model."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.ratio import Ratio, of_pairs
from bench.workload import language_model, preference_rows, tokenizer
from pddpo_ray.contracts import FitCommand, FitSettings, Start
from pddpo_ray.records import Objective
from pddpo_ray.storage.artifacts import ArtifactStore
from pddpo_ray.training.local import store_reference
from pddpo_ray.training.models.lora import load_lora_trainer

VOCABULARY, RANK = 4096, 8


def run(name: str = "C13", *, hidden: int = 256, layers: int = 4) -> Ratio:
    """Bytes of a whole model over the bytes that one more fit adds to the store of a LoRA run. Counted, not timed."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        language_model(VOCABULARY, 0, hidden=hidden, layers=layers).save_pretrained(model)
        tokenizer(VOCABULARY).save_pretrained(model)
        store = ArtifactStore(Path(folder) / "artifacts")
        reference = store_reference(store, model)
        trainer = load_lora_trainer(model, store, reference, rank=RANK, alpha=2.0 * RANK)
        settings = FitSettings(steps=1, batch_pairs=2, support=0.0)
        rows = tuple(preference_rows(VOCABULARY, 2))
        objective = Objective("reward", reference, 0.1)
        made = trainer.execute(FitCommand(1, Start(reference), objective, rows, settings, 1, "reward-1")).version
        # the folder as it lies in the store: asking for it as a model would merge the adapter first
        whole, added = (_bytes(store.stored(version.path)) for version in (reference, made))
    details = {"MiB of the model": whole / 2**20, "MiB of a policy": added / 2**20}
    what = f"stored bytes: whole model / one more policy, LoRA rank {RANK}"
    return of_pairs(name, what, [(whole, added)], details=details)


def _bytes(folder: Path) -> float:
    return float(sum(file.stat().st_size for file in folder.rglob("*.safetensors")))
