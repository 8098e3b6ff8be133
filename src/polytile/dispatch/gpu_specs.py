"""The KernelSpec of a loop, a product or an attention on a GPU, or under Triton's interpreter on a CPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import sympy
import torch
from torch.utils._sympy.functions import Min, Mod

from polytile.attention import arguments as attention_arguments
from polytile.attention.problem import AttentionProblem
from polytile.dispatch import specs
from polytile.dispatch.keys import Condition, PowerBelow16
from polytile.dispatch.spec import KernelSpec
from polytile.facts import PowerOfTwo, Wide
from polytile.matmul import gemm_args, gemm_kernel
from polytile.matmul.triton.operands import EVEN_K, EVEN_L, symbol, symbols
from polytile.runtime import regime
from polytile.runtime.formula import any_above, encode, power_below_16, power_of_two
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import INT32_REACH, reaches
from polytile.schedule.gpu import vectors
from polytile.schedule.nest import Form, nest_of


def loop_spec(kernel: LoopKernel, origins: tuple[str, ...], target: torch.device) -> KernelSpec:
    """The spec of specs.loop_spec, whose regimes also depend on: whether 16 divides each other integer of the loop, the
    alignment of each tensor, whether lengths of rows are powers of two and which smaller power divides them, and whether
    positions fit 32 bits."""
    spec = specs.loop_spec(kernel, origins, target)
    positions = {symbol: position for position, symbol in enumerate(kernel.symbols)}
    rows = [s for s in rows_of(kernel) if s.name in spec.keys.bucketed]
    powers = (Condition(PowerOfTwo(s.name), power_of_two(s, positions)) for s in rows)
    widths = vectors.widest_load(kernel)
    deciding = vectors.deciding_integers(kernel) if widths > 1 else ()
    divisors = (Condition(PowerBelow16(s.name), power_below_16(positions[s], widths)) for s in deciding)
    wide = _wide(reaches(kernel), positions)
    return _on_gpu(spec, regime.ALIGNMENT, (wide, *powers, *divisors), {s.name for s in kernel.own_symbols})


def _wide(reached: Sequence[sympy.Expr], positions: Mapping[sympy.Symbol, int]) -> Condition:
    """The condition that some position in a tensor needs 64 bits; `reached` are the largest positions."""
    return Condition(Wide(), any_above(reached, INT32_REACH, positions))


def _on_gpu(
    spec: KernelSpec, tensor_code: int, conditions: tuple[Condition, ...], strides: Collection[str] | None = None
) -> KernelSpec:
    """The spec whose regimes also depend on the alignment of tensors, on whether 16 divides `strides` (None: all integers that
    otherwise decide nothing), and on `conditions`."""
    pairs = zip(spec.size_names, spec.size_codes, strict=True)
    asked = spec.size_names if strides is None else strides
    return replace(
        spec,
        size_codes=tuple(regime.DIVISIBLE if code == regime.IGNORE and name in asked else code for name, code in pairs),
        tensor_codes=(tensor_code,) * len(spec.args),
        conditions=conditions,
    ).on_its_gpu()


def rows_of(kernel: LoopKernel) -> tuple[sympy.Symbol, ...]:
    """The lengths of rows that are reduced or scanned and that blocks overhang: code for one value of them needs no masks.
    Columns and points have none: for one size of them, as many kernels became slower as became faster."""
    nest = nest_of(kernel.loop)
    return tuple(s for s in kernel.symbols if nest.form is Form.ROW and s in nest.vec.size.free_symbols)


def template_spec(
    kernel: gemm_kernel.GemmKernel, name: str, origins: tuple[str, ...], target: torch.device
) -> KernelSpec:
    """The spec of specs.template_spec, whose regimes also depend on: the alignment of each stride and tensor, whether blocks
    along k need a mask, and whether positions fit 32 bits."""
    spec = specs.template_spec(kernel, name, origins, target)
    positions = {s: place for place, s in enumerate(symbols(kernel))}
    asked = (EVEN_K,) if kernel.second is None else (EVEN_K, EVEN_L)
    even = (Condition(fact, encode(1 - Min(1, Mod(symbol(fact.name), fact.by)), positions)) for fact in asked)
    return _on_gpu(spec, regime.ALIGNED_16, (_wide(gemm_args.positions(kernel), positions), *even))


def attention_spec(problem: AttentionProblem, origins: tuple[str, ...], target: torch.device) -> KernelSpec:
    """The spec of specs.attention_spec, whose regimes also depend on the alignment of each stride and tensor, and on whether
    positions fit 32 bits."""
    positions = {symbol: place for place, symbol in enumerate(problem.symbols)}
    wide = _wide(attention_arguments.positions(problem), positions)
    return _on_gpu(specs.attention_spec(problem, origins, target), regime.ALIGNED_16, (wide,))
