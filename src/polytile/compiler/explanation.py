"""`polytile.explain`: what became of every operator of a function, which kernels run, and why those."""

from __future__ import annotations

import collections
import contextlib
import cProfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from polytile.compiler import front_door, tiers
from polytile.compiler import programs as compiler
from polytile.compiler.backend import Backend
from polytile.compiler.programs import CompiledProgram
from polytile.dispatch.decision import Decision
from polytile.dispatch.multikernel import MultiKernel
from polytile.frontend.failures import Failure
from polytile.problem import sizes_text, time_text
from polytile.runtime import background
from polytile.runtime.convolution import PackedConvolution
from polytile.runtime.programs import file_of
from polytile.runtime.weights import Site


@dataclass(frozen=True)
class OperatorRow:
    """What became of an operator.

    operator  its name, "aten.add.Tensor"
    how       generated, template (a product), library (an ATen call), view (no work) or programs (its graphs are compiled)
    reason    why it is not generated, or ""
    count     call sites in the graphs
    """

    operator: str
    how: str
    reason: str
    count: int


@dataclass(frozen=True)
class DecisionRow:
    """One choice of a kernel.

    kernel, sizes  what had to be chosen for: (name, elements) of each size
    candidate      what runs
    provenance     the grounds, in words; `link` is the selector's link that decided
    seconds        measured time of a call; None if it was not measured
    """

    kernel: str
    sizes: tuple[tuple[str, int], ...]
    candidate: str
    provenance: str
    seconds: float | None
    link: str = ""


@dataclass(frozen=True)
class WeightRow:
    """A weight of which a packed copy may be kept.

    kernel        the kernel that multiplies by it
    sizes, dtype  as the kernel reads it
    bytes         of the packed copy; 0 if there is none, and `reason` says why
    made          how many copies were made so far
    """

    kernel: str
    sizes: tuple[int, ...]
    dtype: str
    bytes: int
    reason: str
    made: int


@dataclass(frozen=True)
class Explanation:
    """What `polytile.explain` returns. `str()` makes the report of it.

    graphs     names of the graphs that the call ran
    operators  what became of each operator
    decisions  each choice of a kernel, at these sizes and at those met before
    sources    the program around the kernels, one text for each graph
    weights    the weights of which packed copies may be kept
    failures   what polytile failed to compile
    pending    jobs that are left to do in the background; `polytile.wait()` returns when there are none
    calls      how calls find their compiled code, of a function that polytile.compile made (docs/calls.md)
    cuda_graphs  graph's name and what CUDA graphs did for it, of those that may use some (docs/cuda-graphs.md)
    """

    graphs: tuple[str, ...]
    operators: tuple[OperatorRow, ...]
    decisions: tuple[DecisionRow, ...]
    sources: tuple[str, ...] = field(default=(), repr=False)
    weights: tuple[WeightRow, ...] = ()
    failures: tuple[Failure, ...] = ()
    pending: int = 0
    calls: str = ""
    cuda_graphs: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graph(s): {', '.join(self.graphs)}"]
        lines += [f"front door: {self.calls}"] if self.calls else []
        lines += ["", "operators"]
        width = max((len(row.operator) for row in self.operators), default=0)
        for row in self.operators:
            reason = f": {row.reason}" if row.reason else ""
            lines.append(f"  {row.operator:<{width}}  {row.count:>3} × {row.how}{reason}")
        lines += ["", "decisions"]
        for decision in self.decisions:
            sizes = sizes_text(decision.sizes)
            time = f" {time_text(decision.seconds)}" if decision.seconds is not None else ""
            lines.append(f"  {decision.kernel} [{sizes}] → {decision.candidate}{time}: {decision.provenance}")
        lines += [f"  {self.pending} more are being measured in the background"] if self.pending else []
        lines += ["", "CUDA graphs"] if self.cuda_graphs else []
        lines += [f"  {name}: {what}" for name, what in self.cuda_graphs]
        lines += ["", "failures"] if self.failures else []
        lines += [f"  {failed.reason}; {failed.script or 'no script'} shows it again" for failed in self.failures]
        lines += ["", "weights"] if self.weights else []
        for weight in self.weights:
            size = " × ".join(map(str, weight.sizes))
            kept = f"packed, {weight.bytes / 2**20:.1f} MiB" if weight.bytes else f"not packed: {weight.reason}"
            lines.append(f"  {weight.kernel} {size} {weight.dtype}: {kept}; packed {weight.made} times so far")
        return "\n".join(lines)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Calls `function(*args, **kwargs)` once, and reports what became of every operator, which kernels run, and why.

    A function that torch.compile, `nn.Module.compile` or polytile.compile made is called as it is. If nothing that was compiled
    for it fits the call in the gradient mode in force, it is called in another mode in which it has run, such as under
    `torch.no_grad()`. Only where there is none is something compiled. Any other function is compiled for this one call, with
    symbolic sizes and stall="tune". Graphs that the call compiles and does not run, such as a backward one, are listed. Programs
    that are being made in the background are waited for; what is to be measured there is counted as `pending`.

    Returns
    -------
    An Explanation. Printed, it is a report; `.operators`, `.decisions`, `.weights`, `.failures` and `.sources` hold the same as
    data. Times are in seconds.
    """
    at_once = Backend((("stall", "tune"),))
    compiled = function if _is_compiled(function) else torch.compile(function, backend=at_once, dynamic=True)
    tiers.wait_until_built()
    before = compiler.compiled_programs()
    profile = cProfile.Profile()  # the only way to see them run: compiled programs are plain functions and leave no trace
    with contextlib.ExitStack() as recording:
        kernels = {multikernel: None for program in before for multikernel in program.multikernels}
        followed_keys = {kernel: recording.enter_context(kernel.recording_keys()) for kernel in kernels}
        if compiled is not function or not any(_ran_under(mode, profile, compiled, args, kwargs) for mode in _modes()):
            profile.runcall(compiled, *args, **kwargs)
    ran = _ran(profile)
    names = {p.name for p in compiler.compiled_programs() if p not in before or p in ran}
    tiers.wait_until_built()  # a graph that this call has compiled
    ran_now = [program for program in compiler.compiled_programs() if program.name in names]
    door = front_door.door_of(function)
    return report(ran_now, followed_keys, len(background.pending()), "" if door is None else str(door))


def _ran(profile: cProfile.Profile) -> list[CompiledProgram]:
    """The programs that the profile has seen run; by identity, as code objects of two programs with the same text are equal."""
    codes = {id(entry.code) for entry in profile.getstats()}
    return [program for program in compiler.compiled_programs() if id(getattr(program.call, "__code__", None)) in codes]


def _is_compiled(function: Any) -> bool:
    in_place = getattr(function, "_compiled_call_impl", None) is not None  # by nn.Module.compile
    return in_place or hasattr(function, "_torchdynamo_orig_callable") or isinstance(function, torch._dynamo.OptimizedModule)


Mode = Callable[[], contextlib.AbstractContextManager[Any]]


def _modes() -> tuple[Mode, ...]:
    """The gradient modes in which a function may have run: the one in force first."""
    without: tuple[Mode, ...] = (contextlib.nullcontext, torch.no_grad, torch.inference_mode)
    return without if torch.is_grad_enabled() else (*without, torch.enable_grad)


NOT_COMPILED = "Detected recompile when torch.compile stance is 'fail_on_recompile'"
"""How Dynamo's error begins."""


def _ran_under(
    mode: Mode, profile: cProfile.Profile, compiled: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Calls the function under a gradient mode, if what was compiled for it so far fits; else it is not begun."""
    with mode(), torch.compiler.set_stance("fail_on_recompile"):
        try:
            profile.runcall(compiled, *args, **kwargs)
        except RuntimeError as error:
            if NOT_COMPILED not in str(error):
                raise
            profile.clear()
            return False
    return True


def report(
    programs: Sequence[CompiledProgram],
    followed_keys: Mapping[MultiKernel, Collection[int]] | None = None,
    pending: int = 0,
    calls: str = "",
) -> Explanation:
    """The rows of the given graphs.

    Their decisions are those made for them, and those that calls of them followed, whose keys are in `followed_keys`.
    """
    operators = collections.Counter((r.operator, r.how, r.reason) for p in programs for r in p.operators)
    rows = tuple(OperatorRow(op, how, reason, n) for (op, how, reason), n in sorted(operators.items()))
    files = {file_of(program.call) for program in programs}
    decisions: dict[Decision, None] = {}
    for multikernel in dict.fromkeys(m for p in programs for m in p.multikernels):
        followed = [multikernel.decision_of(key) for key in (followed_keys or {}).get(multikernel, ())]
        decisions |= dict.fromkeys(d for d in multikernel.decisions if d in followed or not files.isdisjoint(d.programs))
    weights = tuple(row for program in programs for row in _weights(program))
    sources = tuple(program.source for program in programs)
    failed = tuple(failure for program in programs for failure in program.failures)
    names = tuple(program.name for program in programs)
    used = [(program.name, getattr(program.call, "cuda_graphs", None)) for program in programs]
    graphs = tuple((name, str(graph)) for name, graph in used if graph is not None)
    return Explanation(names, rows, tuple(map(_row, decisions)), sources, weights, failed, pending, calls, graphs)


def _weights(program: CompiledProgram) -> Iterator[WeightRow]:
    """The weights of products, then those of convolutions."""
    for multikernel, call in program.calls:
        if call.packed_weight is not None and call.site is not None:
            yield _weight(multikernel.spec.name, call.site, call.packed_weight.view.dtype)
        elif call.computed_weight is not None and call.site is not None:
            yield _weight(multikernel.spec.name, call.site, call.computed_weight.weight.dtype)
    for target in program.targets:
        if isinstance(target, PackedConvolution):
            for site in target.sites:
                yield _weight(target.__name__, site, target.dtype)


def _weight(kernel: str, site: Site, dtype: torch.dtype) -> WeightRow:
    return WeightRow(kernel, site.recipe.sizes, str(dtype).removeprefix("torch."), site.bytes, site.reason, site.made)


def _row(decision: Decision) -> DecisionRow:
    return DecisionRow(
        decision.kernel, decision.sizes, decision.candidate, decision.provenance, decision.seconds, decision.link
    )
