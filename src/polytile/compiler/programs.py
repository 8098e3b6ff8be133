"""A Program becomes one callable: passes, kernels behind MultiKernels, wrapper.

This is the one place that knows all the rooms. `explain()` reports what it keeps of a compiled graph: operators, kernels,
wrapper source.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.utils._pytree import tree_leaves, tree_map

from polytile import debug, locks, options
from polytile.candidates.candidate import Candidate
from polytile.compiler import computed_weights
from polytile.compiler.library_targets import prepare_target
from polytile.compiler.stored import Calls, Loaded, Slot, calls_at
from polytile.counters import counters
from polytile.dispatch import unmeasured
from polytile.dispatch.define import Defined, define_attention, define_loop, define_template
from polytile.dispatch.links import forced
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.registry import alive
from polytile.errors import CandidateRejected, CompileFailed, LoweringError
from polytile.frontend import failures
from polytile.frontend.failures import Failure
from polytile.frontend.graph import Lowered, OperatorReport
from polytile.frontend.subgraphs import Called, Subgraph
from polytile.ir import sizes
from polytile.ir.attention import Attention
from polytile.ir.loop import Loop
from polytile.ir.program import Extern, Program
from polytile.ir.template import Template
from polytile.matmul import packed_weights
from polytile.passes.pipeline import optimize
from polytile.runtime import background, programs, spare_core, toolchain
from polytile.runtime import compile as compiling
from polytile.runtime.chosen_convolution import ChosenConvolution, ChosenGradients
from polytile.runtime.neutral import neutral
from polytile.runtime.target import Target
from polytile.tuning import budget
from polytile.wrapper import KernelCall, Line, backend, schedule

Values = Mapping[sympy.Symbol, int]


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """A compiled graph. `call` takes the list of arguments, which it empties, and returns the list of results; whoever
    holds `call` keeps all of it alive."""

    name: str
    operators: tuple[OperatorReport, ...]
    source: str
    call: Callable[[list[Any]], list[Any]]
    program: Program | None = None
    calls: tuple[tuple[MultiKernel, KernelCall], ...] = ()
    failures: tuple[Failure, ...] = ()
    targets: tuple[Any, ...] = ()
    """What runs as a library call, once for each call."""

    @property
    def multikernels(self) -> tuple[MultiKernel, ...]:
        of_targets = (target.kernel for target in self.targets if isinstance(target, ChosenConvolution | ChosenGradients))
        return tuple(dict.fromkeys((*(multikernel for multikernel, _ in self.calls), *of_targets)))


_compiled: list[weakref.ref[CompiledProgram]] = []
_names = itertools.count()
_lock = locks.lock()


def compiled_programs() -> tuple[CompiledProgram, ...]:
    """Every graph compiled since the last reset that is still in use, oldest first."""
    with _lock:
        references = [(reference, reference()) for reference in _compiled]
        _compiled[:] = [reference for reference, program in references if program is not None]
    return tuple(program for _, program in references if program is not None)


def program_name(kind: str) -> str:
    """A fresh name: inference0, forward1, backward2, ..."""
    return f"{kind}{next(_names)}"


def reset() -> None:
    """Sets `counters` to zero, and has `explain` forget which graphs were compiled.

    Kernels, measurements and compiled functions stay.
    """
    with _lock:
        _compiled.clear()
    counters.reset()
    failures.reset()
    compiling.reset()


def compile_program(
    lowered: Lowered,
    traced: Values,
    hints: Sequence[Values] = (),
    ahead: Sequence[Values] = (),
    *,
    ready: bool = False,
    slot: Slot | None = None,
) -> CompiledProgram:
    """Generates everything that `lowered` needs, under the options in force. `traced` are the sizes that the tracer
    saw: kernels for them start compiling at once, side by side, then those for the sizes in `ahead`. For `hints`
    kernels are chosen before this returns. With `ready` it returns once calls at the traced sizes find kernels, by what is known
    or predicted, and calls at others something that serves them. `slot`: where later processes find the program.

    Raises CompilerMissing where no C++ compiler is found.
    """
    with neutral(), counters.stage("generating"):
        with counters.stage("passes"):
            program, inplace = optimize(lowered.program)
        program = _with_programs(program, lambda each: compile_program(each, traced, hints, ahead, ready=ready))
        for operation in program.operations:
            if isinstance(operation, Extern):
                prepare_target(operation.target)
        kernels = _Kernels(program)
        _show_progress()
        write = backend(options.get("wrapper"), _device_type(program))
        with budget.program(options.get("program_seconds")):
            wrapped = write(program.name, schedule(program, kernels.call_of, inplace, traced))
        targets = [o.target for o in program.operations if isinstance(o, Extern) and not _subgraphs_of(o, Called)]
        loaded = Loaded(program.name, wrapped, kernels.calls, lowered.operators, tuple(targets))
        if slot is not None and not lowered.failures:
            slot.write(loaded, _device_type(program))
    return finish_program(loaded, traced, hints, ahead, ready=ready, program=program, failed=lowered.failures)


class _Kernels:
    """The kernels of one program, and how it calls them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.calls: list[tuple[MultiKernel, KernelCall]] = []
        self._defined: Defined = {}

    def call_of(self, operation: Loop | Template | Attention) -> KernelCall:
        """How an operation is called. Raises CompilerMissing."""
        background.background.turn()  # a caller that traces needs the GIL more
        buffers = self.program.buffers
        if isinstance(operation, Template):
            multikernel, tensors, extents = define_template(operation, buffers, self._defined)
        elif isinstance(operation, Attention):
            multikernel, tensors, extents = define_attention(operation, buffers, self._defined)
        else:
            multikernel, tensors, extents = define_loop(operation, buffers, self._defined)
        if Target.of(multikernel.spec.target).native:
            toolchain.require()
        computed = computed_weights.computed_weight(operation, self.program) if isinstance(operation, Loop) else None
        arguments: computed_weights.Arguments = tensors
        if computed is not None:
            arguments = tuple(computed if tensor == computed.result.name else tensor for tensor in tensors)
        call = computed_weights.kernel_call(multikernel, arguments, extents)
        self.calls.append((multikernel, call))
        return call


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A program as lines, with the kernels that they call: what packages are made of."""

    program: Program
    lines: tuple[Line, ...]
    calls: Calls


def schedule_program(lowered: Lowered, traced: Values, hints: Sequence[Values] = ()) -> Scheduled:
    """The lines of a program, under the options in force; for `hints` kernels are chosen by measuring. Raises CompilerMissing
    where no C++ compiler is found."""
    with neutral(), counters.stage("generating"):
        program, inplace = optimize(lowered.program)
        kernels = _Kernels(program)
        all_lines = schedule(program, kernels.call_of, inplace, traced)
    with neutral(), counters.stage("choosing"):
        _warm(kernels.calls, hints)
    return Scheduled(program, all_lines, kernels.calls)


def _with_programs(program: Program, compiled: Callable[[Lowered], CompiledProgram]) -> Program:
    """`program` with what `compiled` makes of its subgraphs in their places."""
    calls_by_subgraph: dict[Subgraph, Called] = {}

    def called(value: Any) -> Any:
        if not isinstance(value, Subgraph):
            return value
        if value not in calls_by_subgraph:
            calls_by_subgraph[value] = Called(compiled(value.lowered).call, value.many)
        return calls_by_subgraph[value]

    operations = tuple(
        dataclasses.replace(operation, args=tree_map(called, operation.args))
        if isinstance(operation, Extern) and _subgraphs_of(operation, Subgraph)
        else operation
        for operation in program.operations
    )
    return dataclasses.replace(program, operations=operations)


def _subgraphs_of(operation: Extern, kind: type) -> list[Any]:
    return [value for value in tree_leaves(operation.args) if isinstance(value, kind)]


def load_program(slot: Slot, name: str, traced: Values) -> Loaded | None:
    """What an earlier process has left of a program, which is called `name` here; None where it left nothing that can run."""
    with neutral(), counters.stage("loading"), budget.program(options.get("program_seconds")):
        loaded = slot.load(name, traced)
        if loaded is None or not (toolchain.find().present or is_decided(loaded.calls, traced)):
            return None
    counters.add("programs_loaded")
    return loaded


def finish_program(
    loaded: Loaded,
    traced: Values,
    hints: Sequence[Values] = (),
    ahead: Sequence[Values] = (),
    *,
    ready: bool = False,
    program: Program | None = None,
    failed: Sequence[Failure] = (),
) -> CompiledProgram:
    """Has kernels compiled and chosen ahead of calls, as compile_program says, and keeps the program for `explain()`."""
    call, calls = loaded.wrapped.call, loaded.calls
    forced.warn_of_idle(lambda: ((kernel.spec.name, kernel.names) for kernel in alive()))
    with neutral(), counters.stage("choosing"):
        for values in (traced, *ahead):
            _prepare(calls, values)
        with programs.on_behalf(programs.file_of(call)):
            _warm(calls, hints)
            if ready:
                _decide_unmeasured(calls, (traced, *ahead))
    for target in loaded.targets:
        counters.add_library_call(str(target))
    debug.show(2, lambda: loaded.wrapped.source)
    return record(loaded.name, loaded.operators, loaded.wrapped.source, call, program, calls, failed, loaded.targets)


def is_decided(calls: Calls, given: Values) -> bool:
    """Whether calls with these values of the graph's size symbols find kernels in the dispatch tables."""
    known = list(calls_at(calls, given))
    return len(known) == len(calls) and all(kernel.decision_at(*ints) is not None for kernel, ints in known)


def record(
    name: str,
    operators: tuple[OperatorReport, ...],
    source: str,
    call: Callable[[list[Any]], list[Any]],
    program: Program | None = None,
    calls: Sequence[tuple[MultiKernel, KernelCall]] = (),
    failed: Sequence[Failure] = (),
    targets: Sequence[Any] = (),
) -> CompiledProgram:
    """Keeps a compiled graph for `explain()` as long as `call` is alive, in place of what ran the graph of that name before."""
    compiled = CompiledProgram(name, operators, source, call, program, tuple(calls), tuple(failed), tuple(targets))
    call.polytile_program = compiled  # type: ignore[attr-defined]
    with _lock:
        _compiled[:] = [known for known in _compiled if (alive := known()) is not None and alive.name != name]
        _compiled.append(weakref.ref(compiled))
    return compiled


def pack_weights(compiled: CompiledProgram, arguments: Mapping[str, Any]) -> None:
    """Packs the constant weights among the arguments of a call, by the names of the graph's inputs, so that later calls find the
    copies."""
    with spare_core.keep_to_one():
        for _, call in compiled.calls:
            packed, computed = call.packed_weight, call.computed_weight
            weight = arguments.get(packed.view.buffer) if packed is not None and packed.constant else None
            weight = arguments.get(computed.weight.name) if computed is not None else weight
            if call.site is not None and isinstance(weight, torch.Tensor):
                call.site.find(weight)


def _show_progress() -> None:
    """From now on a line for each problem, where the option `progress` asks for it."""
    if options.get("progress") == "lines":
        from polytile.report import progress  # brings rich, which few programs need

        progress.print_lines_from_now_on()


def _device_type(program: Program) -> str:
    """The type of device that all of the program's buffers are on; "" where there are several or none."""
    types = {buffer.device.type for buffer in program.buffers.values()}
    return types.pop() if len(types) == 1 else ""


def _prepare(calls: Calls, given: Values) -> None:
    """Starts compiling what a call with these values of the graph's size symbols will need, all kernels side by side."""
    asked: set[tuple[MultiKernel, tuple[int, ...]]] = set()
    for multikernel, ints in calls_at(calls, given):
        if (multikernel, multikernel.spec.keys.fields(ints)) not in asked:
            multikernel.prepare(ints)
        asked.add((multikernel, multikernel.spec.keys.fields(ints)))


def _decide_unmeasured(calls: Calls, given: Sequence[Values]) -> None:
    """Has calls with these values of the graph's size symbols find a kernel, and others something that serves them."""
    needed: list[tuple[MultiKernel, Candidate]] = []

    def decide(multikernel: MultiKernel, ints: tuple[int, ...], varying: Collection[str], runs: bool = True) -> None:
        background.background.turn()
        unmeasured.decide(multikernel, ints, measured=runs)
        if (form := unmeasured.prepare_everywhere(multikernel, ints, varying)) is not None:
            needed.append((multikernel, form))
        for inner, own, chosen in multikernel.inner_calls(ints):
            decide(inner, own, inner.keys.bucketed, runs and chosen)

    for values in given:
        for one in calls:
            for multikernel, ints in calls_at([one], values):
                names = zip(multikernel.spec.size_names, one[1].sizes, strict=True)
                decide(multikernel, ints, [name for name, size in names if size.free_symbols])
    for multikernel, form in needed:
        # A call that nothing else serves compiles what it can.
        with contextlib.suppress(CandidateRejected, CompileFailed, LoweringError):
            multikernel.add_fallback(form)


@dataclass(frozen=True, eq=False)
class Wanted:
    """A kernel, and sizes of it that a hint asks for; the graph's sizes in the hint."""

    kernel: MultiKernel
    sizes: Mapping[str, int]
    hint: tuple[int, ...]


_noted: list[Wanted] | None = None


@contextlib.contextmanager
def noting_hints() -> Iterator[list[Wanted]]:
    """Within the block, in every thread, what hints ask for is added to the list and nothing is measured."""
    global _noted
    before, _noted = _noted, []
    try:
        yield _noted
    finally:
        _noted = before


def _warm(calls: Sequence[tuple[MultiKernel, KernelCall]], hints: Sequence[Values]) -> None:
    """Chooses kernels for the given values of the graph's size symbols ahead of calls."""
    for multikernel, call in calls:
        names = multikernel.spec.size_names
        given = [{**values, **packed_weights.assumed_sizes(call.packed_weight)} for values in hints]
        if _noted is not None:
            for values, own in zip(hints, given, strict=True):
                if _known(call, own):
                    ints = [sizes.evaluate(e, own) for e in call.sizes]
                    _noted.append(Wanted(multikernel, dict(zip(names, ints, strict=True)), tuple(values.values())))
            continue
        wanted = [[sizes.evaluate(e, values) for e in call.sizes] for values in given if _known(call, values)]
        if wanted:
            multikernel.warm([dict(zip(names, extents, strict=True)) for extents in wanted])


def _known(call: KernelCall, values: Values) -> bool:
    return all(e.free_symbols <= values.keys() for e in call.sizes)
