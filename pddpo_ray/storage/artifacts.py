"""The artifact store: folders of safetensors, complete or absent, named by the journal.

A file or folder is written under a temporary name, hashed, flushed to disk and renamed; only then may the journal
name it. A reader checks the hash, so a damaged or foreign file stops the run instead of steering it. The store is a
local folder or any fsspec URL (`s3://bucket/run`); object stores have no rename, there the object itself appears whole.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pddpo_ray.errors import RunError, UserError
from pddpo_ray.storage.tensors import stored_mapping, tensors_sha256
from pddpo_ray.storage.whole_files import ADAPTER_BASE, WEIGHTS, written_aside

if TYPE_CHECKING:
    import torch

    Tensor = np.ndarray[Any, Any] | torch.Tensor

M = TypeVar("M", bound="Mapping[str, Any]")


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ArtifactStore:
    """Artifacts of one run under `root`. Paths given out are relative to it, so a run folder can be moved.

    `cache` holds files of a remote store. `shared`: several runs start fits from it, so nothing is removed.
    """

    def __init__(self, root: str | Path, *, cache: Path | None = None, shared: bool = False) -> None:
        text, self.shared = str(root), shared
        self._remote = "://" in text and not text.startswith("file://")
        self.root = text if self._remote else str(Path(text.removeprefix("file://")).absolute())
        if self._remote:
            import fsspec

            self._files, self._base = fsspec.core.url_to_fs(text)
            self._cache = (
                cache or Path(tempfile.gettempdir()) / f"pddpo-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
            )
        else:
            Path(self.root).mkdir(parents=True, exist_ok=True)
            self._cache = Path(self.root)

    # --- whole folders ------------------------------------------------------------------------------------------

    def write_folder(self, path: str, fill: Callable[[Path], None]) -> Path:
        """Calls `fill` with an empty folder and makes it `path`, whole or not at all. Returns where it can be read.

        An artifact that is already there is kept: names carry the hash of the content.
        """
        target = self._local(path)
        if target.exists():
            return target
        # Where another process finishes the same artifact first, its content is the same by its name.
        with written_aside(target) as staging:
            staging.mkdir()
            fill(staging)
            for file in sorted(staging.rglob("*")):
                if file.is_file():
                    _flush(file)
            _flush(staging)
            if self._remote:
                self._files.put(str(staging), f"{self._base}/{path}", recursive=True)
        _flush(target.parent)
        return target

    def folder(self, path: str) -> Path:
        """A readable local folder of an artifact with its weights. Raises RunError if it is not in the store.

        A version that is stored as an adapter gets its whole weights here, in a folder that may go away again.
        """
        target = self.stored(path)
        if (target / ADAPTER_BASE).exists() and not (target / WEIGHTS).exists():
            # Imported here: adapters need torch, and most artifacts are none.
            from pddpo_ray.storage.adapters import whole_folder

            return whole_folder(self.read_torch, target, self._cache / ".whole" / path)
        return target

    def stored(self, path: str) -> Path:
        """An artifact as it is stored. Raises RunError if it is not in the store."""
        target = self._local(path)
        if not target.exists() and self._remote and self._files.exists(f"{self._base}/{path}"):
            with written_aside(target) as staging:
                self._files.get(f"{self._base}/{path}", str(staging), recursive=True)
        if not target.exists():
            raise RunError(f"artifact {path} is missing from the store {self.root}: restore it, or start a new run")
        return target

    def scratch(self, name: str) -> Path:
        """A folder on this machine for work that is under way; nothing but its maker reads it."""
        return self._cache / ".under-way" / name

    def _local(self, path: str) -> Path:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise UserError(f"artifact path {path!r} must be relative and stay inside the store")
        return self._cache / path

    # --- weights ------------------------------------------------------------------------------------------------

    def write_tensors(
        self, name: str, tensors: Mapping[str, Tensor], *, fill: Callable[[Path], None] | None = None
    ) -> tuple[str, str]:
        """Stores tensors as `<name>-<sha12>/model.safetensors`, beside what `fill` adds (config, tokenizer).

        Returns (relative path of the folder, sha256 of the tensors).
        """
        sha256 = tensors_sha256(tensors)
        path = f"{name}-{sha256[:12]}"

        def write(folder: Path) -> None:
            _save_safetensors(tensors, folder / WEIGHTS)
            if fill is not None:
                fill(folder)

        self.write_folder(path, write)
        return path, sha256

    def read_tensors(self, path: str, sha256: str) -> dict[str, np.ndarray[Any, Any]]:
        """Tensors of a stored version as numpy arrays, after their hash was compared. Raises RunError.

        For bfloat16, which numpy lacks, use `read_torch`.
        """
        from safetensors.numpy import load_file

        return _verify_hash(load_file(self.folder(path) / WEIGHTS), path, sha256)

    def read_torch(self, path: str, sha256: str) -> Mapping[str, torch.Tensor]:
        """The same as torch tensors on the CPU, each read when it is asked for."""
        return _verify_hash(stored_mapping(self.folder(path) / WEIGHTS), path, sha256)


def _verify_hash(tensors: M, path: str, sha256: str) -> M:
    actual = tensors_sha256(tensors)
    if actual != sha256:
        raise RunError(f"artifact {path} has hash {actual[:12]}, the journal says {sha256[:12]}: its file was changed")
    return tensors


def _save_safetensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items() if isinstance(tensor, np.ndarray)}
    if len(arrays) == len(tensors):
        from safetensors.numpy import save_file

        save_file(arrays, file)
        return
    import torch
    from safetensors.torch import save_file as save_torch

    plain, places = {}, set()
    for name, tensor in tensors.items():
        plain[name] = torch.as_tensor(tensor).detach().cpu().contiguous()
        place = plain[name].untyped_storage().data_ptr()
        if place in places:
            # safetensors refuses weights that share memory
            plain[name] = plain[name].clone()
        places.add(place)
    save_torch(plain, file)


def _flush(path: Path) -> None:
    """Content of a file, or names in a folder, on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
