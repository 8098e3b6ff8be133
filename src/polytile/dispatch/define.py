"""Maps an operation of a Program to the MultiKernel that runs it, and to the arguments of the call.

What only a GPU needs (gpu_specs.py and Triton's modules below it) is imported when a program has a tensor on one. On other
machines it would add a sixth to the time that importing the compiler takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from polytile import options as settings
from polytile.attention import call as attention_call
from polytile.attention.problem import AttentionProblem, Bias, Causal
from polytile.attention.unfused import unfused_attention
from polytile.candidates import attention as attentions
from polytile.candidates import cpp_loops as loops
from polytile.candidates import products as templates
from polytile.candidates import sources as registry_of_sources
from polytile.candidates import unfused_columns
from polytile.candidates.candidate import Candidate
from polytile.candidates.library import grouped
from polytile.candidates.materialised_operands import MaterialisedOperands
from polytile.candidates.unfused_attention import Step, UnfusedAttention
from polytile.dispatch import recorded, specs
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.registry import define
from polytile.errors import IRError
from polytile.ir.attention import Attention
from polytile.ir.buffer import Buffer, View
from polytile.ir.loop import Loop
from polytile.ir.serialise import Writer
from polytile.ir.template import PackedInt4, PackedWeight, Template
from polytile.matmul import gemm_kernel, packed_weights
from polytile.matmul.cpp import GemmSpec
from polytile.runtime import pytorch
from polytile.runtime.target import Target
from polytile.schedule.canonical import LoopKernel, TensorArg, canonicalize
from polytile.schedule.cpu.space import thread_counts

Call = tuple[MultiKernel, tuple[str | View | PackedWeight, ...], tuple[sympy.Expr, ...]]

Defined = dict[tuple[str, torch.device], MultiKernel]
"""The MultiKernels of one compile, by what they compute and where, so that repeated work is generated once."""


class _Stored:
    """What has a form as JSON."""

    def document(self) -> dict[str, Any]:
        """All of it (ir/serialise.py). Raises Unstorable."""
        return Writer(WORKS).document(self)


@dataclass(frozen=True)
class LoopWork(_Stored):
    """What the MultiKernel of a loop is made from."""

    kernel: LoopKernel
    origins: tuple[str, ...]
    target: torch.device

    @property
    def text(self) -> str:
        return f"loop {self.kernel.text}"

    def define(self) -> MultiKernel:
        """The MultiKernel; equal works share one. Raises LoweringError and CompilerMissing as loop_candidates does."""
        candidates: tuple[Candidate, ...]
        if Target.of(self.target).native:
            candidates = loops.loop_candidates(self.kernel, self.origins, pytorch.threads())
        else:
            from polytile.candidates.triton_loops import loop_candidates as gpu_loops

            parts = [LoopWork(part, self.origins, self.target).define() for part, _ in unfused_columns.parts(self.kernel)]
            unfused = (unfused_columns.Unfused(self.kernel, parts),) if parts else ()
            candidates = (*unfused, *gpu_loops(self.kernel, self.origins, self.target))
        spec = _specs_on(self.target).loop_spec(self.kernel, self.origins, self.target)
        return recorded.known(define(spec, candidates), self)


@dataclass(frozen=True)
class ProductWork(_Stored):
    """What the MultiKernel of a product is made from; `first` are the loops that store the operands that have prologues."""

    kernel: gemm_kernel.GemmKernel
    origins: tuple[str, ...]
    target: torch.device
    sources: tuple[str, ...]
    first: tuple[LoopWork | None, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.kernel.family} {', '.join(self.sources)} {self.kernel.text}"

    def define(self) -> MultiKernel:
        """The MultiKernel; equal works share one."""
        kernel, target, sources = self.kernel, self.target, self.sources
        name, stored = gemm_kernel.kernel_name(kernel, self.origins), None
        first = [work.define() if work is not None else None for work in self.first]
        unfused = _epilogue_alone(kernel, target)
        if any(kernel.prologues):
            stored = MaterialisedOperands(kernel, first, ProductWork(kernel.plain, self.origins, target, sources).define())
        if Target.of(target).native:
            candidates = templates.candidates(kernel, name, thread_counts(pytorch.threads()), unfused, sources, stored)
        else:
            candidates = templates.gpu_candidates(kernel, name, target, unfused, sources, stored)
        spec = _specs_on(target).template_spec(kernel, name, self.origins, target)
        return recorded.known(define(spec, candidates), self)


@dataclass(frozen=True)
class AttentionWork(_Stored):
    """What the MultiKernel of an attention is made from."""

    problem: AttentionProblem
    origins: tuple[str, ...]
    target: torch.device
    sources: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{', '.join(self.sources)} {self.problem.text}"

    def define(self, multikernels: Defined | None = None) -> MultiKernel:
        """The MultiKernel; equal works share one. `multikernels` as in define_loop."""
        problem, target = self.problem, self.target
        unfused = _unfused_attention(problem, target, {} if multikernels is None else multikernels)
        candidates = attentions.candidates(problem, target, self.sources, unfused, thread_counts(pytorch.threads()))
        spec = _specs_on(target).attention_spec(problem, self.origins, target)
        return recorded.known(define(spec, candidates), self)


def _specs_on(target: torch.device) -> Any:
    """The module that has the specs of kernels on this device."""
    if Target.of(target).native:
        return specs
    from polytile.dispatch import gpu_specs

    return gpu_specs


WORKS = (
    LoopWork, ProductWork, AttentionWork, LoopKernel, TensorArg, gemm_kernel.GemmKernel, GemmSpec, PackedInt4, AttentionProblem,
    Bias, Causal,
)  # fmt: skip
"""What works are, and are made of (ir/serialise.py)."""


def define_loop(loop: Loop, buffers: Mapping[str, Buffer], multikernels: Defined | None = None) -> Call:
    """The MultiKernel of a loop, from `multikernels` if it is there, with the buffers and the integers to pass."""
    target, multikernels = target_of(loop, buffers), {} if multikernels is None else multikernels
    kernel, site = canonicalize(loop, buffers, extents_too=Target.of(target).native)
    if (kernel.text, target) not in multikernels:
        multikernels[kernel.text, target] = LoopWork(kernel, loop.origins, target).define()
    return multikernels[kernel.text, target], site.buffers, site.sizes


def _loop_work(loop: Loop, buffers: Mapping[str, Buffer]) -> LoopWork:
    return LoopWork(canonicalize(loop, buffers)[0], loop.origins, target_of(loop, buffers))


def target_of(loop: Loop, buffers: Mapping[str, Buffer]) -> torch.device:
    """The one device whose memory a loop reads and writes. Raises IRError where there are several."""
    devices = {buffers[name].device for name in loop.reads() | loop.writes()}
    if len(devices) != 1:
        raise IRError(f"loop {loop.name} uses memory of {', '.join(sorted(map(str, devices)))}; a loop has one device.")
    return devices.pop()


def define_template(template: Template, buffers: Mapping[str, Buffer], multikernels: Defined | None = None) -> Call:
    """The MultiKernel of a matmul with its epilogue, from `multikernels` if it is there, with the views and the integers to
    pass."""
    kernel, site = gemm_kernel.canonicalize(template, buffers)
    sources = registry_of_sources.chosen()
    if "cpp" in sources and not settings.get("interpret"):
        kernel, site = packed_weights.with_packed_weight(kernel, site, template, buffers)
    target, multikernels = buffers[template.a.buffer].device, {} if multikernels is None else multikernels
    place = f"{kernel.family} {kernel.text}", target
    if place not in multikernels:
        first = tuple(_loop_work(loop, buffers) if loop is not None else None for loop in template.prologues)
        multikernels[place] = ProductWork(kernel, template.origins, target, sources, first).define()
    return multikernels[place], site.buffers, site.sizes


def define_attention(attention: Attention, buffers: Mapping[str, Buffer], multikernels: Defined | None = None) -> Call:
    """The MultiKernel of an attention, from `multikernels` if it is there, with the views and the integers to pass."""
    problem, site = attention_call.canonicalize(attention, buffers)
    target, multikernels = buffers[attention.q.buffer].device, {} if multikernels is None else multikernels
    if (problem.text, target) not in multikernels:
        sources = registry_of_sources.chosen()
        multikernels[problem.text, target] = AttentionWork(problem, attention.origins, target, sources).define(multikernels)
    return multikernels[problem.text, target], site.buffers, site.sizes


def _unfused_attention(problem: AttentionProblem, target: torch.device, multikernels: Defined) -> UnfusedAttention | None:
    """The candidate that keeps scores in memory, if there are products of the problem's type."""
    of_library = Target.of(target).native and problem.dtype == torch.float16
    own = problem.window is not None or problem.dropout is not None or problem.layout is not None
    own = own or (problem.scores is not None and target.type != "cpu")
    if problem.lse or problem.backward or own or of_library:
        return None
    parts = unfused_attention(problem, target)
    products = [define_template(product, parts.buffers, multikernels) for product in (parts.first, parts.last)]
    calls = (products[0], define_loop(parts.softmax, parts.buffers, multikernels), products[1])
    steps = [Step(kernel, tuple(map(str, tensors)), ints) for kernel, tensors, ints in calls]
    return UnfusedAttention(problem, steps, parts.buffers["scores"].dtype, target)


def _epilogue_alone(kernel: gemm_kernel.GemmKernel, target: torch.device) -> MultiKernel | None:
    """The epilogue as a kernel of its own, for the library's product. It is called with the product and the epilogue's
    arguments. A GPU's product of groups of rows has one without an epilogue too."""
    if kernel.epilogue is None and not (kernel.spec.grouped == "m" and grouped.at_once(kernel, target)):
        return None
    alone = templates.epilogue_alone(kernel)
    return LoopWork(alone, alone.loop.origins, target).define()
