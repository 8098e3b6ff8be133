"""Products whose candidates were measured beside each other, from the files in results/, as the store would hold them:

    gpu_gemm.json     H100: every generated config (part `candidates`); a shortlist, ATen and cuBLASLt (part `pairs`)
    gpu_cutlass.json  H200: the eight generated configs that were predicted best, ATen, cuBLASLt and CUTLASS

Predictions are today's, which need no GPU.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from benchmarks import record
from benchmarks.gpu.prior_fit import KINDS, ROW_BY_ROW
from benchmarks.gpu.products import DTYPES
from polytile.candidates.library.cublaslt import LATER
from polytile.candidates.triton_matmul import label
from polytile.cost import cutlass as cutlass_prior
from polytile.cost import library_matmul as library_prior
from polytile.cost.triton_matmul import Access, Accesses, cost, refused, terms
from polytile.ir.printer import type_name
from polytile.matmul.cutlass import configs as cutlass
from polytile.matmul.triton.configs import Kind, space
from polytile.problem import Config, Measurement, Outcome, Problem
from polytile.runtime.cuda.device import DeviceFacts, named
from polytile.store.reading import Record
from polytile.store.records import TERM

MEMORY_CLOCK, BUS_BITS = {"H100": 2619e6, "H200": 3201e6}, {"H100": 5120, "H200": 6144}
"""As their drivers tell (HBM3, HBM3e)."""


@dataclass(frozen=True)
class Product:
    """One product on one device, and the µs of its candidates by name."""

    device: DeviceFacts
    function: str
    dtype: str
    shape: tuple[int, int, int]
    us: Mapping[str, float]
    batch: int = 1

    @property
    def kind(self) -> Kind:
        return KINDS[self.dtype]

    @property
    def by_rows(self) -> bool:
        """Whether B is read as it is; otherwise it lies along k."""
        return self.function.rpartition(": ")[2] in (*ROW_BY_ROW, "at the hint")

    @property
    def size(self) -> dict[str, int]:
        m, n, k = self.shape
        return {"batch": self.batch, "M": m, "N": n, "K": k}

    @property
    def accesses(self) -> Accesses:
        _, n, k = self.shape
        return Access(bool(k % 16), True), Access(bool(n % 16)) if self.by_rows else Access(bool(k % 16), True)

    def records(self, number: int) -> Iterator[Record]:
        """The measurements of those candidates that there are today."""
        place = f"cuda-recorded-{self.device.name}"
        dtypes = (type_name(DTYPES[self.dtype]),) * 3
        problem = Problem("mm", f"{self.function} {self.dtype}", tuple(self.size.items()), dtypes, (), place)
        for name, us in self.us.items():
            if (found := self._candidate(name)) is not None:
                origin, config, predicted, parts = found
                parts = {**self._work(), **parts}
                yield Record(f"{number}-{name}", float(number), Measurement(
                    problem, name, config, "recorded", Outcome.OK, (us * 1e-6,) * 5, origin=origin, predicted=predicted,
                    state=tuple(sorted((TERM + part, float(f"{value:.4g}")) for part, value in parts.items())),
                    machine=machine_of(self.device),
                ))  # fmt: skip

    def _candidate(self, name: str) -> tuple[str, Config, float, dict[str, float]] | None:
        """Origin, config, predicted seconds and their terms."""
        kind, size, device, accesses = self.kind, self.size, self.device, self.accesses
        if name == "aten" or name.startswith("cublaslt "):
            along_k = accesses[0].along_k, accesses[1].along_k
            alone = kind.itemsize == 2 and (accesses[0].alone or accesses[1].alone)
            seconds = library_prior.cost(kind, size, device, along_k, alone)
            rank = 0 if name == "aten" else int(name.split()[1])
            config = Config() if name == "aten" else Config.of(proposal=rank)
            return "library" if name == "aten" else "cublaslt", config, seconds * (1 + LATER * rank), {}
        if (block := _cutlass(DTYPES[self.dtype], not self.by_rows, device).get(name)) is not None:
            seconds = cutlass_prior.cost(kind, block, size, device)
            return "cutlass", block, seconds, terms(kind, block, size, device)
        tile = _generated(kind, device).get(name)
        if tile is None or refused(kind, tile, size, device, accesses):
            return None
        return "triton", tile, cost(kind, tile, size, device, accesses), terms(kind, tile, size, device, accesses)

    def _work(self) -> dict[str, float]:
        """What candidates/product_terms.py says of such a product: no epilogue, prologue or second product."""
        a, b = self.accesses
        return {
            **{f"work.{name}": float(value) for name, value in self.size.items()},
            "work.itemsize": float(self.kind.itemsize), "work.tf32": float(self.kind.tf32), "work.packed": 0.0,
            "work.a_along_k": float(a.along_k), "work.b_along_k": float(b.along_k), "work.a_alone": float(a.alone),
            "work.b_alone": float(b.alone), "work.epilogue": 0.0, "work.prologue": 0.0, "work.second": 0.0,
        }  # fmt: skip


@functools.cache
def _generated(kind: Kind, device: DeviceFacts) -> dict[str, Config]:
    return {label(config): config for config in space(kind, device).configs}


@functools.cache
def _cutlass(dtype: torch.dtype, b_along_k: bool, device: DeviceFacts) -> dict[str, Config]:
    return {cutlass.label(config): config for config in cutlass.configs(dtype, b_along_k, device)}


def machine_of(device: DeviceFacts) -> tuple[tuple[str, str], ...]:
    """What the store would hold of the device."""
    facts = {name: str(value) for name, value in dataclasses.asdict(device).items()}
    chip = next(name for name in MEMORY_CLOCK if name in device.name)
    memory = {"memory_clock": str(MEMORY_CLOCK[chip]), "memory_bus_bits": str(BUS_BITS[chip])}
    return tuple(sorted({**facts, **memory, "kind": "cuda"}.items()))


def h100(*parts: str) -> list[Record]:
    """The products of these parts of benchmarks.gpu.gemm."""
    found = record.read("gpu_gemm")
    device = named(found["device"])
    products = [
        Product(device, row["function"], row["dtype"], tuple(row["shape"]), row["us"], row.get("batch") or 1)
        for row in found["cells"]
        if row.get("part") in parts
    ]
    return _records(products)


def h200(*origins: str) -> list[Record]:
    """The products of benchmarks.gpu.cutlass, with the candidates of these origins."""
    device = named("H200")
    products = [
        Product(device, part["name"], part["dtype"], tuple(row["shape"]), row["us"])
        for part in record.read("gpu_cutlass")["parts"]
        for row in part["times"]
    ]
    return [each for each in _records(products) if each.measurement.origin in origins]


def _records(products: list[Product]) -> list[Record]:
    return [each for number, product in enumerate(products) for each in product.records(number)]
