"""G0: what a device reaches of its data sheet, in a matrix product and in a copy: what other shares are read beside."""

from __future__ import annotations

from functools import partial

import torch

from bench.device import wall_clock
from bench.limits import SHEET_BYTES, SHEET_FLOPS
from bench.ratio import Ratio, of_pairs
from bench.workload import Shape

CALLS = 20
"""Of the product or the copy within one measurement: starting one costs microseconds."""


def run(shape: Shape, repeats: int = 5, name: str = "G0", *, side: int = 8192, copied: int = 2**32) -> list[Ratio]:
    """Seconds by an H200's data sheet over measured seconds: a square product, and a copy (read and written)."""
    clock = wall_clock(shape.device)
    product, copy = Product(shape, side), Copy(shape, copied)
    found = []
    for what, call, ideal, rate, floor in (
        ("product", product, product.operations / SHEET_FLOPS, product.operations / 1e12, 760 / 989),
        ("copy", copy, copy.moved / SHEET_BYTES, copy.moved / 1e12, 4.2 / 4.8),
    ):
        call()
        call.assert_right()
        pairs = [(ideal, clock(partial(_often, call)) / CALLS) for _ in range(repeats)]
        unit = "TFLOP/s" if what == "product" else "TB/s"
        fastest = min(seconds for _, seconds in pairs)
        details = {f"best {unit}": rate / fastest}
        found.append(
            of_pairs(f"{name}-{what}", f"{what}: data sheet of an H200 / measured", pairs, floor=floor, details=details)
        )
    return found


def _often(call: Product | Copy) -> None:
    for _ in range(CALLS):
        call()


class Product:
    """Of two square matrices."""

    def __init__(self, shape: Shape, side: int) -> None:
        generator = torch.Generator(shape.device).manual_seed(0)
        self._left, self._right = (
            torch.randn(side, side, generator=generator, device=shape.device, dtype=shape.dtype) for _ in range(2)
        )
        self._made = torch.empty_like(self._left)
        self._tolerance = shape.tolerance
        self.operations = 2.0 * side**3

    def __call__(self) -> None:
        torch.mm(self._left, self._right, out=self._made)

    def assert_right(self) -> None:
        """Raises RuntimeError if the first row is not that of a product in double precision."""
        expected = self._left[0].double() @ self._right.double()
        nearly = self._tolerance * float(expected.std())
        if not torch.allclose(self._made[0].double(), expected, rtol=self._tolerance, atol=nearly):
            raise RuntimeError("the product is wrong")


class Copy:
    """Of bytes from one place of the device's memory to another."""

    def __init__(self, shape: Shape, size: int) -> None:
        generator = torch.Generator(shape.device).manual_seed(0)
        self._source = torch.randint(256, (size,), generator=generator, device=shape.device, dtype=torch.uint8)
        self._target = torch.zeros_like(self._source)
        self.moved = 2.0 * size

    def __call__(self) -> None:
        self._target.copy_(self._source)

    def assert_right(self) -> None:
        """Raises RuntimeError if the copy differs."""
        if not torch.equal(self._source, self._target):
            raise RuntimeError("the copy is wrong")
