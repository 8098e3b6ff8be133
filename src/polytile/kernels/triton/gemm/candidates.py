"""The candidates of a product on a GPU, or under Triton's interpreter on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy
import torch

from polytile.kernels.canonical import TensorArg
from polytile.kernels.facts import Facts
from polytile.kernels.triton.candidate import TritonCandidate, Work
from polytile.kernels.triton.gemm import prior
from polytile.kernels.triton.gemm.configs import Kind, space
from polytile.kernels.triton.gemm.schedules import generate
from polytile.kernels.triton.gemm.unit import Chip, symbol
from polytile.kernels.triton.kernel import TritonKernel
from polytile.kernels.triton.loops import OVERLAPPING
from polytile.problem import Config
from polytile.runtime.cuda import device as devices

if TYPE_CHECKING:
    from polytile.kernels.templates import GemmKernel

INTERPRETED_AS = "H100"
"""The device whose configs the interpreter runs."""


class GemmCandidate(TritonCandidate):
    """One config of a product: right at all sizes, whatever it is meant for. One whose code spills sums is never run: its
    loop over k would write them to memory and read them back at every step."""

    hard_limits = False
    may_spill = False


@dataclass(frozen=True)
class Arguments:
    """A product's arguments as a launch passes them: tensors, then every integer."""

    kernel: GemmKernel

    @property
    def tensors(self) -> tuple[TensorArg, ...]:
        return self.kernel.tensors

    @property
    def symbols(self) -> tuple[sympy.Symbol, ...]:
        return tuple(symbol(name) for name in self.kernel.size_names)

    @property
    def text(self) -> str:
        return self.kernel.text


def kind_of(kernel: GemmKernel) -> Kind:
    dtype, stored = kernel.in_dtype, kernel.stored
    return Kind(
        dtype.itemsize,
        torch.int8 in stored,
        dtype.is_floating_point and dtype.itemsize == 1,
        any(each != dtype for each in stored) or any(kernel.prologues),
        kernel.tf32,
    )


def device_of(target: torch.device) -> devices.DeviceFacts:
    return devices.facts(target.index or 0) if target.type == "cuda" else devices.named(INTERPRETED_AS)


def accesses(kernel: GemmKernel, size: Mapping[str, int]) -> prior.Accesses:
    """How the operands are read at these sizes. Strides that `size` lacks are those of dense operands."""
    alone_a, alone_b = kernel.loaded_alone(size)
    return prior.Access(alone_a, kernel.spec.a_layout == "k"), prior.Access(alone_b, kernel.spec.b_layout == "k")


def gemm_candidates(kernel: GemmKernel, name: str, target: torch.device) -> tuple[TritonCandidate, ...]:
    """Every config in canonical order. Raises LoweringError where some operation of the epilogue has no Triton form. A CPU as
    `target` means Triton's interpreter."""
    device, kind = device_of(target), kind_of(kernel)
    own = space(kind, device)
    index = (target.index or 0) if target.type == "cuda" else None
    chip = Chip(device.sms, target.type == "cuda" and device.capability >= OVERLAPPING)

    def make(config: Config, facts: Facts) -> TritonKernel:
        return generate(kernel, config, facts, chip)

    work = Work(Arguments(kernel), name, device, index, make)

    def candidate(config: Config) -> TritonCandidate:
        def able(size: Mapping[str, int]) -> bool:
            return own.valid(config, size)

        def cost(size: Mapping[str, int]) -> float:
            return prior.cost(kind, config, size, device, accesses(kernel, size))

        return GemmCandidate(label(config), config, work, able, cost)

    found = tuple(candidate(config) for config in own.configs)
    _ = found[0].specialise(Facts()).kernel
    return found


@functools.cache
def label(config: Config) -> str:
    """A config as a candidate's name: "tile 128x64x32 s3 w4", "split 64x64x64 s4 w4 8 parts"."""
    text = f"{config['variant']} {config['m']}x{config['n']}x{config['k']} s{config['stages']} w{config['warps']}"
    if config.get("group", 8) not in (None, 8):
        text += f" g{config['group']}"
    return text + (f" {config['splits']} parts" if config.get("splits") else "")


__all__ = ["Arguments", "device_of", "gemm_candidates", "kind_of", "label"]
