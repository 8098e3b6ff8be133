"""The candidates of a product on a GPU, or under Triton's interpreter on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy
import torch

from polytile.candidates.product_terms import computed, work_terms
from polytile.candidates.triton import TritonCandidate, Work
from polytile.codegen.triton.kernel import TritonKernel
from polytile.cost import triton_matmul as prior
from polytile.ir import expr, levels
from polytile.ir.template import SCALED_ALONG_K
from polytile.matmul.triton.configs import Kind, space
from polytile.matmul.triton.operands import symbols
from polytile.matmul.triton.schedule import TILE, schedule_of
from polytile.matmul.triton.schedules import MOST_ROWS, generate
from polytile.matmul.triton.unit import Chip, holds_rows
from polytile.problem import Config, Scalar
from polytile.runtime.target import Target
from polytile.schedule.canonical import LoopKernel, TensorArg
from polytile.schedule.facts import Facts

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

PASSED = 6.0
"""Multiply-adds that it takes to bring an element from memory through registers to the tensor cores: int8 and int4 weights at 128
and 1024 rows on an H100."""
LIGHT = 8.0
"""Multiply-adds of an epilogue for each element up to which both loops of persistent programs are made one: of 4 (a ReLU, a
residual) that takes 2 to 7 % off, of 30 (GELU) it adds 10 % (configs.IN_PARTS has the times)."""


class GemmCandidate(TritonCandidate):
    """One config of a product. It is right at all sizes. It is never run if its code spills sums, since the loop over k would
    write them to memory and read them back at every step."""

    hard_limits = False
    may_spill = False

    @property
    def traits(self) -> tuple[tuple[str, Scalar], ...]:
        return traits(self.config)

    @property
    def probes(self) -> tuple[Facts, ...]:
        return super().probes if schedule_of(self.config).tensor else (Facts(exact=(("M", MOST_ROWS),)),)


@dataclass(frozen=True)
class Arguments:
    """A product's arguments as a launch passes them: tensors, then every integer."""

    kernel: GemmKernel

    @property
    def tensors(self) -> tuple[TensorArg, ...]:
        return self.kernel.tensors

    @property
    def symbols(self) -> tuple[sympy.Symbol, ...]:
        return symbols(self.kernel)

    @property
    def text(self) -> str:
        return self.kernel.text


def traits(config: Config) -> tuple[tuple[str, Scalar], ...]:
    """What predictions are wrong with: the order in which blocks are visited, and their width."""
    words = [str(config["variant"]), *(word for word in ("swapped", "flat") if config.get(word))]
    return ("variant", " ".join(words)), ("n", config["n"])


def accesses(kernel: GemmKernel, size: Mapping[str, int], work: tuple[float, float]) -> prior.Accesses:
    """How the operands are read at these sizes; `work`: multiply-adds of their prologues for each element. Strides that `size`
    lacks are those of dense operands."""
    (a, b), spec = kernel.scalar_loads(size), kernel.spec
    a_bytes, b_bytes = map(prologue_bytes, kernel.prologues)
    return prior.Access(a, spec.a_layout == "k", work[0], a_bytes), prior.Access(b, spec.b_layout == "k", work[1], b_bytes)


def prologue_work(prologue: LoopKernel | None) -> float:
    """Multiply-adds that a prologue takes per element of its operand, including the way through registers and shared memory; 0
    without a prologue."""
    if prologue is None:
        return 0.0
    return PASSED + computed(prologue.loop) / len(prologue.loop.stores)


@functools.cache
def prologue_bytes(prologue: LoopKernel | None) -> float | None:
    """Bytes that a prologue reads per element of its operand: half a byte of 4-bit integers; None without a prologue."""
    if prologue is None:
        return None
    loop, axes = prologue.loop, {axis.symbol for axis in prologue.loop.axes if axis.size != 1}
    whole = {load.buffer for load in expr.loads(*loop.roots) if axes <= load.index.free_symbols}
    return sum(prologue.storage(buffer).itemsize for buffer in whole) / len(loop.stores)


def gemm_candidates(kernel: GemmKernel, name: str, target: torch.device) -> tuple[TritonCandidate, ...]:
    """Every config in canonical order. Raises LoweringError where some operation of the epilogue has no Triton form. A CPU as
    `target` means Triton's interpreter."""
    device, kind = Target.of(target).facts, Kind.of(kernel)
    own = space(kind, device)
    index = (target.index or 0) if target.type == "cuda" else None
    computed_a, computed_b = kernel.prologues
    work_along = prologue_work(computed_a), prologue_work(computed_b)
    chip = Chip(device.sms, Target.of(target).overlaps)

    def make(config: Config, facts: Facts) -> TritonKernel:
        return generate(kernel, config, facts, chip)

    def plain(config: Config, facts: Facts) -> TritonKernel:
        return generate(kernel, config, facts, Chip(device.sms))

    work = Work(Arguments(kernel), name, device, index, make, plain)

    def able(config: Config, size: Mapping[str, int]) -> bool:
        return own.valid(config, kernel.average(size))

    def cost(config: Config, size: Mapping[str, int]) -> float:
        deep = {**size, "K": size["K"] + size["L"]} if kernel.second is not None else kernel.average(size)
        last = 0.0 if kernel.epilogue is None or holds_rows(kernel.epilogue, config) else device.launch_seconds
        return prior.cost(kind, config, deep, device, accesses(kernel, size, work_along)) + last

    def terms(config: Config, size: Mapping[str, int]) -> dict[str, float]:
        parts = prior.terms(kind, config, kernel.average(size), device, accesses(kernel, size, work_along))
        return {**work_terms(kernel, size), **parts}

    judges, possible = (able, cost, terms), [config for config in own.configs if _supports(kernel, config)]
    generated = tuple(GemmCandidate(label(c), c, work, *(functools.partial(each, c) for each in judges)) for c in possible)
    _ = generated[0].specialise(Facts()).kernel
    return generated


def _supports(kernel: GemmKernel, config: Config) -> bool:
    """Whether a config can do all that the kernel asks for, and is meant for it. Dual products need whole blocks. Block-wise
    scales need dots whose steps along k are within one scale. An epilogue that needs a row's reduction at the row's points needs
    blocks of whole rows. A config that stores its block in parts has no row reductions, and flattens its loops if, and only if,
    the epilogue is light."""
    if kernel.second is not None and schedule_of(config) != TILE:
        return False
    if config.get("swapped") and kernel.spec.b_layout != "k":
        return False
    if kernel.scales is not None and (not schedule_of(config).tensor or int(config["k"]) > SCALED_ALONG_K):
        return False
    epilogue = kernel.epilogue
    if config.get("stores") and epilogue is not None:
        return not epilogue.reduced and config.get("flat") in (None, int(computed(epilogue) <= LIGHT))
    return epilogue is None or not epilogue.reduced or not levels.waits(epilogue) or holds_rows(epilogue, config)


@functools.cache
def label(config: Config) -> str:
    """A config as a candidate's name: "tile 128x64x32 s3 w4", "split 64x64x64 s4 w4 8 parts"."""
    text = f"{config['variant']} {config['m']}x{config['n']}x{config['k']} s{config['stages']} w{config['warps']}"
    if config.get("swapped"):
        text = f"{config['variant']} swapped{text.removeprefix(str(config['variant']))}"
    if config.get("group", 8) not in (None, 8):
        text += f" g{config['group']}"
    if config.get("stores"):
        text += f" {config['stores']} stores" + (" flat" if config.get("flat") else "")
    if config.get("matrix_instr_nonkdim") is not None:
        text += f" i{config['matrix_instr_nonkdim']} u{config['waves_per_eu']}"
    return text + (f" {config['splits']} parts" if config.get("splits") else "")
