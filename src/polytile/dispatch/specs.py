"""The KernelSpec of a loop, a product or an attention on any device (gpu_specs.py adds what matters on a GPU)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from polytile.attention import arguments as attention_arguments
from polytile.attention.problem import DECIDING, AttentionProblem
from polytile.attention.scores import scores_of
from polytile.candidates import cpp_loops as loops
from polytile.candidates import products as templates
from polytile.candidates import roundings
from polytile.dispatch import product_samples
from polytile.dispatch.example_inputs import make_args
from polytile.dispatch.spec import ArgInfo, KernelSpec
from polytile.facts import Layout
from polytile.ir import evaluate
from polytile.ir.buffer import CPU
from polytile.matmul import gemm_args, gemm_kernel
from polytile.runtime import regime
from polytile.schedule.canonical import LoopKernel, precision_of
from polytile.schedule.checks import check_messages
from polytile.schedule.nest import Form, nest_of
from polytile.tuning.sample import Sample, Sampler


def loop_spec(kernel: LoopKernel, origins: tuple[str, ...], target: torch.device = CPU) -> KernelSpec:
    """The spec of a loop. Its regimes depend on the sizes of its axes; strides and offsets decide nothing."""
    names, rounded = tuple(s.name for s in kernel.symbols), roundings.of_loop(kernel.loop)
    domain: set[sympy.Symbol] = set().union(*[a.size.free_symbols for a in kernel.loop.axes + kernel.loop.reduced])
    return KernelSpec(
        name=loops.kernel_name(kernel, origins),
        family="loop",
        kernel=kernel.digest,
        args=tuple(ArgInfo(t.name, t.dtype, t.role, rounded.get(t.name)) for t in kernel.tensors),
        size_names=names,
        size_codes=tuple(regime.BUCKET if s in domain else regime.IGNORE for s in kernel.symbols),
        reduction=reduction_terms(kernel),
        reduction_hint=_hint(kernel),
        source_ops=origins,
        checks=loops.check_messages(kernel),
        reference=_reference(kernel),
        make_args=lambda size: make_args(kernel, size, target),
        target=target,
        sampler=_sampler(kernel),
    )


def reduction_terms(kernel: LoopKernel) -> tuple[str | int, ...]:
    """Names and numbers whose product bounds the number of terms that one output element sums."""
    across = kernel.loop.axes if any(store.is_segment_sum for store in kernel.loop.stores) else ()
    return roundings.terms_of(kernel.loop.reduced + across)


def _hint(kernel: LoopKernel) -> str:
    form = nest_of(kernel.loop).form
    return {Form.ROW: "inner", Form.COLUMN: "outer", Form.POINTWISE: ""}[form]


def _reference(kernel: LoopKernel) -> Any:
    """The interpreter on this kernel's flat arguments: in float64 where they were widened, else in their own types."""
    return lambda *args: kernel.interpret(*args, precision=precision_of(kernel.tensors, args))


def _sampler(kernel: LoopKernel) -> Sampler:
    """The interpreter at some points of this kernel's grid, on the caller's own arguments: it takes little memory."""
    places = {tensor.name: k for k, tensor in enumerate(kernel.tensors)}

    def draw(args: Sequence[Any], precision: torch.dtype | None) -> list[Sample] | None:
        tensors = dict(zip(places, args, strict=False))
        values = dict(zip(kernel.symbols, args[len(places) :], strict=True))
        pieces = evaluate.pieces_of(kernel.loop, tensors, values, precision)
        return None if pieces is None else [Sample(places[p.buffer], p.strides, p.offset, p.value) for p in pieces]

    return draw


def template_spec(
    kernel: gemm_kernel.GemmKernel, name: str, origins: tuple[str, ...], target: torch.device = CPU
) -> KernelSpec:
    """The spec of a product called `name`. Its regimes depend on the integers gemm_kernel.DECIDING."""
    rounded = roundings.of_product(kernel)
    return KernelSpec(
        name=name,
        family=kernel.family,
        kernel=kernel.digest,
        args=tuple(ArgInfo(t.name, t.dtype, t.role, rounded.get(t.name)) for t in kernel.tensors),
        size_names=kernel.size_names,
        size_codes=tuple(gemm_kernel.DECIDING.get(name, regime.IGNORE) for name in kernel.size_names),
        layouts=tuple(map(Layout, kernel.layouts)),
        reduction=("K", "N") if kernel.epilogue is not None and kernel.epilogue.reduced else ("K",),
        source_ops=origins,
        reference=templates.reference(kernel),
        make_args=lambda size: gemm_args.make_args(kernel, size, target),
        target=target,
        sampler=product_samples.sampler(kernel),
    )


def attention_spec(problem: AttentionProblem, origins: tuple[str, ...], target: torch.device = CPU) -> KernelSpec:
    """The spec of an attention. Its regimes depend on the integers attention.problem.DECIDING."""
    return KernelSpec(
        name=f"{problem.family}_{problem.digest[:8]}",
        family=problem.family,
        kernel=problem.digest,
        args=tuple(ArgInfo(t.name, t.dtype, t.role) for t in problem.tensors),
        size_names=problem.size_names,
        size_codes=tuple(DECIDING.get(name, regime.IGNORE) for name in problem.size_names),
        reduction=("Mq", "Mkv") if problem.backward else ("Mkv",),
        source_ops=origins,
        checks=check_messages(scores_of(problem).kernel.loop) if problem.scores is not None else (),
        reference=attention_arguments.reference(problem),
        make_args=lambda size: attention_arguments.make_args(problem, size, target),
        target=target,
    )
