"""The torch.compile backend: Dynamo graph → AOTAutograd → ATen graphs → compiled programs."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
import torch.fx
from torch._dynamo.exc import ShortenTraceback
from torch._dynamo.utils import flatten_graph_inputs
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._logging import trace_structured
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from polytile import debug
from polytile import options as settings
from polytile.compiler import early, frames, front_door, handed, races, tiers
from polytile.compiler import guards as dynamo_guards
from polytile.compiler import programs as compiler
from polytile.compiler.inference import Inference
from polytile.compiler.stored import Loaded, Slot
from polytile.counters import counters
from polytile.errors import CompilerMissing
from polytile.frontend import hints as hinted
from polytile.frontend import unique_types, unprinted
from polytile.frontend.attention.flex_whole import write_out_whole
from polytile.frontend.attention.held import write_out_held
from polytile.frontend.attention.joint import recognise_in_training
from polytile.frontend.attention.patterns import recognise, simplify_masks
from polytile.frontend.attention.regions import mark_computed, recompute
from polytile.frontend.attention.whole import keep_whole
from polytile.frontend.channels_last import lay_channels_last
from polytile.frontend.circular_pads import keep_pads_whole
from polytile.frontend.eager import SOURCE, as_traced, library_calls, say_once, with_own_code
from polytile.frontend.failures import CALLERS, Failure, failure, is_raised
from polytile.frontend.floats import restart_if_fixed, settle_ahead
from polytile.frontend.graph import Lowered, OperatorReport, lower_graph
from polytile.frontend.graph_checks import calls_aten_alone, is_repeatable, unsupported
from polytile.frontend.graph_text import Symbols
from polytile.frontend.hints import Hints, Values
from polytile.frontend.lower.decompositions import decompositions
from polytile.frontend.merged_sizes import renew_merged_sizes
from polytile.frontend.overwritten import keep_overwritten
from polytile.frontend.plain_copies import drop_plain_copies
from polytile.frontend.resizing import kept_whole
from polytile.frontend.taken_apart import noting
from polytile.frontend.weights import weights_of
from polytile.ir.printer import program_text
from polytile.runtime import background, collector, sizes_seen

Boxed = Callable[[list[Any]], Any]

settle_ahead()
unique_types.install()


def polytile(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles one Dynamo graph; `torch.compile(f, backend="polytile", dynamic=True)` calls it.

    `options` are rows of `polytile.options`, `mode` stands for some of them (`polytile.options.MODES`); raises OptionError for
    what is neither.
    """
    with _shown_plainly():
        given = _given(mode, options, "options= of torch.compile")
        return _compile(graph, example_inputs, given, (), (), strict=False)


def compile(
    function: Callable[..., Any] | None = None, hints: hinted.Given = None, compile_ahead: hinted.Given = None,
    options: Mapping[str, Any] | None = None, mode: str | None = None, dynamic: bool | None = True, fullgraph: bool = False,
    guards: str = "all",
) -> Any:  # fmt: skip
    """See `polytile.compile`."""
    given = _given(mode, options, "options= of polytile.compile")
    ahead = hinted.checked(compile_ahead, "compile_ahead")
    kept = dynamo_guards.filter_of(dynamo_guards.checked(guards))
    # With few guards, compiled code is not shared with other compiles of the function.
    backend = Backend(
        tuple(sorted(given.items())), hinted.checked(hints), ahead, 0 if kept is None else next(_few_guards)
    )
    with settings.override(**given):
        door, may_race = settings.get("front_door"), races.allowed()

    def compiled(function: Callable[..., Any]) -> Any:
        filtered: Any = None if kept is None else {"guard_filter_fn": kept}
        compile_ = functools.partial(torch.compile, backend=backend, dynamic=dynamic, fullgraph=fullgraph, options=filtered)
        made = frames.compile_in_own_frame(compile_, function)
        return front_door.install(made, function, backend, dynamic, door, may_race, backend.expect)

    return compiled if function is None else compiled(function)


def compile_aten(function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]) -> Boxed:
    """Compiles a function of ATen operators as it stands, with all its sizes dynamic; the result takes the list of arguments,
    which it empties. For graphs that AOTAutograd has made and does not take itself (frontend/reproducer.py)."""
    with settings.override(**_given(None, options, "options= of compile_aten")):
        return _Compiler("forward", settings.overridden(), ())(make_fx(function, tracing_mode="symbolic")(*arguments), arguments)


_few_guards = itertools.count(1)


def _given(mode: str | None, options: Mapping[str, Any] | None, origin: str) -> dict[str, Any]:
    """The options of one compile. Raises OptionError for those, and for what the environment sets, that cannot be."""
    settings.check_environment()
    return {**settings.of_mode(mode), **settings.check(options or {}, origin)}


@dataclass(frozen=True)
class Backend:
    """What `polytile.compile` gives to torch.compile: the backend with options and hints."""

    options: tuple[tuple[str, Any], ...] = ()
    hints: Hints = ()
    compile_ahead: Hints = ()
    few_guards: int = 0
    """A number of its own for a compile that leaves guards out."""
    _graphs: list[None] = field(default_factory=list, compare=False, repr=False)

    __name__ = "polytile"

    def expect(self, values: Iterable[Any]) -> None:
        """Prepares for a first graph, which Dynamo is about to capture for a call with these values. What fails here fails again
        when the graph is compiled, which reports it."""
        with contextlib.suppress(Exception), settings.override(**dict(self.options)):
            early.prepare(values, hinted=bool(self.hints))

    def __call__(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Names of hints must fit the first graph. Later ones are parts after a graph break, or the same graph with
        sizes 0 and 1, which are never dynamic: they may have fewer."""
        first = not self._graphs
        self._graphs.append(None)
        with _shown_plainly():
            return _compile(graph, example_inputs, dict(self.options), self.hints, self.compile_ahead, strict=first)


def _compile(
    graph: Any, example_inputs: Sequence[Any], given: Mapping[str, Any], hints: Hints, ahead: Hints, strict: bool
) -> Callable[..., Any]:
    if any(isinstance(value, list | tuple | dict) for value in example_inputs):  # as compiled autograd passes them
        return flatten_graph_inputs(
            graph, example_inputs, lambda flat, values: _compile(flat, values, given, hints, ahead, strict=False)
        )
    with settings.override(**given), collector.at_rest_then_searched(), background.background.held():
        try:
            return _compiled(graph, example_inputs, hints, ahead, strict)
        except Exception as error:
            if is_raised(error):
                raise
            return _uncompiled(graph, example_inputs, error)


def _compiled(
    graph: Any, example_inputs: Sequence[Any], hints: Hints, ahead: Hints, strict: bool
) -> Callable[..., Any]:
    early.prepare(example_inputs, hinted=bool(hints))
    unprinted.install()
    traced = hinted.sizes_of(graph)
    identity = functools.partial(hinted.identity, graph, traced)
    wanted = [*hinted.combinations(hints, traced, strict, graph=identity), *hinted.marked(graph, traced)]
    later = hinted.combinations(ahead, traced, strict, "compile_ahead", identity)
    names = hinted.meanings(graph, traced)
    sized = Sized(tuple(traced), identity(), hinted.beginning(graph), names) if traced else Sized()
    if any(isinstance(value, torch.Tensor) and value.is_cuda for value in example_inputs):
        from polytile.candidates.triton_loops import prepare  # what a GPU needs is imported where there is one

        prepare()
    restart_if_fixed(graph)
    keep_whole(graph)
    keep_pads_whole(graph)
    failed: list[Failure] = []
    together = tiers.Tiers()
    inference = Inference()
    held = settings.overridden()  # the backward graph may be compiled much later, and in another thread
    with kept_whole(), counters.stage("tracing"):
        call = aot_module_simplified(
            graph,
            example_inputs,
            fw_compiler=_Compiler("forward", held, wanted, later, failed, together, sized=sized),
            bw_compiler=_Compiler("backward", held, wanted, later, failed, together),
            inference_compiler=_Compiler("inference", held, wanted, later, failed, together, inference, sized),
            decompositions=noting(decompositions()),
            partition_fn=_partition,
            keep_inference_input_mutations=True,
        )
    return inference.unwrapped(call)


def _trace(name: str, operators: Sequence[OperatorReport], program: Callable[[], str] | None = None) -> None:
    """Tells torch's structured trace, where it is on, what became of a graph: tlparse shows artifacts under their names."""

    def report() -> str:
        return "\n".join(f"{each.operator}: {each.how}{f', {each.reason}' if each.reason else ''}" for each in operators)

    for what, text in (("operators", report), *([("program", program)] if program is not None else [])):
        described = {"name": f"polytile_{name}_{what}", "encoding": "string"}
        trace_structured("artifact", metadata_fn=functools.partial(dict, described), payload_fn=text)


def _leaves(graph: torch.fx.GraphModule) -> list[Any]:
    """The inputs of a graph, as they were traced."""
    return [leaf for node in graph.graph.find_nodes(op="placeholder") for leaf in tree_leaves(node.meta.get("val"))]


def _uncompiled(graph: Any, example_inputs: Sequence[Any], error: Exception) -> Callable[..., Any]:
    """Dynamo's graph as ATen calls, after AOTAutograd raised `error` with polytile's decompositions. Raises `error` if tracing
    fails without them too: the graph is then at fault."""
    name, graphs = compiler.program_name("graph"), []

    def plain(gm: torch.fx.GraphModule, example_inputs: Any) -> Boxed:
        graphs.append(gm)
        boxed: Boxed = make_boxed_func(gm)
        return boxed

    try:
        call = aot_module_simplified(graph, example_inputs, fw_compiler=plain, keep_inference_input_mutations=True)
    except Exception:
        raise error from None
    why = failure("graph", name, error, graph)

    def run(*args: Any) -> Any:
        return call(*args)

    with_own_code(run)
    operators = [report for each in graphs for report in library_calls(each, why.reason)[0]]
    counters.add("graphs_compiled")
    compiler.record(name, tuple(operators), SOURCE, run, failed=[why])
    return run


def _partition(
    joint: torch.fx.GraphModule, joint_inputs: Any, **given: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Splits the graph of a training step into forward and backward, which agree on the memory layout of saved tensors."""
    recognise_in_training(joint, given["num_fwd_outputs"])
    drop_plain_copies(joint.graph)
    simplify_masks(joint.graph)
    recompute(joint.graph)
    keep_overwritten(joint.graph)
    lay_channels_last(joint.graph, training=True)
    forward, backward = min_cut_rematerialization_partition(joint, joint_inputs, **given)
    renew_merged_sizes(forward.graph)
    renew_merged_sizes(backward.graph)
    return forward, backward


@contextlib.contextmanager
def _shown_plainly() -> Iterator[None]:
    """Errors about what the caller asked for leave the block as kinds that Dynamo passes on unchanged; any other error of a
    backend it wraps in one of its own, with advice for compiler developers."""
    try:
        yield
    except CALLERS as error:
        raise error if isinstance(error, ShortenTraceback) else _handed_on(type(error))(str(error)) from None


def _handed_on(kind: type[Exception]) -> type[Exception]:
    """A subclass of `kind`, with its name, that Dynamo passes on unchanged."""

    def initialise(self: Any, message: str) -> None:
        Exception.__init__(self, message)
        self.first_useful_frame = None

    members = {"__init__": initialise, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind, ShortenTraceback), members)


@dataclass(frozen=True)
class Sized:
    """The dynamic sizes of one of Dynamo's graphs, whose digest is `graph`, and what they are called (frontend/hints.py)."""

    symbols: tuple[sympy.Symbol, ...] = ()
    graph: str = ""
    about: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    def graph_of(self, graph: torch.fx.GraphModule) -> sizes_seen.Graph:
        """The same, of the graph that AOTAutograd made of it."""
        return sizes_seen.Graph(self.graph, self.about, dict(self.names), hinted.places_of(graph, self.symbols))


@dataclass(frozen=True)
class _Compiler:
    """One of AOTAutograd's three compilers under one compile's options; the backward one may run long after it. The three have
    in common `failed`, the graphs that could not be compiled, and `tiers`, the graphs that change tiers together. The compiler
    of inference graphs reports its result to `inference`."""

    kind: str
    options: Mapping[str, Any]
    hints: Sequence[Values]
    ahead: Sequence[Values] = ()
    failed: list[Failure] = field(default_factory=list)
    tiers: tiers.Tiers = field(default_factory=tiers.Tiers)
    inference: Inference = field(default_factory=Inference)
    sized: Sized = field(default_factory=lambda: Sized())

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Boxed:
        if self.kind == "inference":
            return self.inference.keep(self._compile(gm))
        if self.kind != "backward":
            return self._compile(gm)
        # Autograd may compile and run it in the midst of a function that Dynamo is looking at; it must not look here.
        untraced = torch._dynamo.disable(self._compile, reason="polytile compiles a backward graph")
        return torch._dynamo.disable(untraced(gm), reason="a compiled backward graph")

    def _compile(self, graph: torch.fx.GraphModule) -> Boxed:
        with settings.restored(self.options):
            name = compiler.program_name(self.kind)
            debug.show(3, lambda: graph.print_readable(print_output=False))
            if self.failed:  # what the forward graph leaves for the backward one lies as ATen's operators left it
                return self._library_calls(graph, name, self.failed[0].reason)
            try:
                why = unsupported(graph)
                if not why:
                    return self._program(graph, name)
            except CompilerMissing as error:
                why = f"no C++ compiler: {error}"
            except Exception as error:
                if is_raised(error):
                    raise
                self.failed.append(failure("graph", name, error, graph))
                return self._library_calls(graph, name, self.failed[-1].reason, self.failed[-1:])
            say_once(why)
            return self._library_calls(graph, name, why)

    def _library_calls(self, graph: torch.fx.GraphModule, name: str, why: str, failed: Sequence[Failure] = ()) -> Boxed:
        operators, call = library_calls(graph, why)
        counters.add("graphs_compiled")
        return compiler.record(name, operators, SOURCE, call, failed=failed).call

    def _program(self, graph: torch.fx.GraphModule, name: str) -> Boxed:
        """The graph's program: from disk; or lowered and compiled, or to be compiled in the background. Raises CompilerMissing
        where calls wait for a C++ compiler and there is none."""
        write_out_held(graph)
        write_out_whole(graph)
        weights, waits_for, sized = weights_of(graph, self.kind), early.waits_for(), self.sized.graph_of(graph)
        traced, symbols = hinted.sizes_of(graph), Symbols.of(graph)
        guards = symbols.guards()
        # AOTAutograd's mode would make every new tensor a fake one.
        with unset_fake_temporarily(), settings.override(stall=waits_for):
            with counters.stage("loading"):
                slot = Slot.of(graph, self.kind, weights, guards)
            loaded = compiler.load_program(slot, name, traced)
            if loaded is not None:
                counters.add("graphs_compiled")
                _trace(name, loaded.operators)
                return self._from_disk(graph, loaded, traced, sized)
        tiered = waits_for == "never" and not self.hints
        if tiered:
            early.expect(_leaves(graph))
        with counters.stage("lowering"):
            if self.kind == "inference":
                recognise(graph)
                lay_channels_last(graph.graph, training=False, weights=weights)
            mark_computed(graph.graph)
            lowered = lower_graph(graph, name, weights)
        _trace(name, lowered.operators, lambda: program_text(lowered.program))
        if symbols.guards() != guards:
            slot = slot.refused("its lowering relies on guards that it has added")
        with unset_fake_temporarily():
            if tiered:
                call = self._in_tiers(graph, lowered, traced, slot, sized)
            else:
                with settings.override(stall=waits_for):
                    program = compiler.compile_program(lowered, traced, self.hints, self.ahead, slot=slot)
                    call = sizes_seen.know(program.call, sized)
        counters.add("graphs_compiled")
        return call

    def _from_disk(self, graph: torch.fx.GraphModule, loaded: Loaded, traced: Values, sized: sizes_seen.Graph) -> Boxed:
        """The program of an earlier process. Where calls wait for nothing and it has not decided for these sizes, it serves once
        something has."""
        never = settings.get("stall") == "never" and not self.hints
        if not never or compiler.is_decided(loaded.calls, traced):
            program = compiler.finish_program(loaded, traced, self.hints, self.ahead, ready=never)
            call = sizes_seen.know(program.call, sized)
            return tiers.reported(call) if never else call
        record = functools.partial(compiler.record, loaded.name, loaded.operators, SOURCE, targets=loaded.targets)
        return self._tiered(
            graph, loaded.name, lambda: compiler.finish_program(loaded, traced, ahead=self.ahead, ready=True), record,
            sized,
        )  # fmt: skip

    def _in_tiers(
        self, graph: torch.fx.GraphModule, lowered: Lowered, traced: Values, slot: Slot, sized: sizes_seen.Graph
    ) -> Boxed:
        """The graph as ATen's operators, until its program is there: made in another process, or where that cannot be here."""
        program = lowered.program
        record = functools.partial(
            compiler.record, program.name, lowered.operators, SOURCE, program=program, failed=lowered.failures
        )

        def make() -> compiler.CompiledProgram:
            loaded = handed.build(lowered, traced, self.ahead, slot)
            if loaded is None:
                return compiler.compile_program(lowered, traced, ahead=self.ahead, ready=True, slot=slot)
            return compiler.finish_program(loaded, traced, ahead=self.ahead, ready=True)

        return self._tiered(graph, program.name, make, record, sized)

    def _tiered(
        self,
        graph: torch.fx.GraphModule,
        name: str,
        make: Callable[[], compiler.CompiledProgram],
        record: Callable[[Boxed], Any],
        sized: sizes_seen.Graph,
    ) -> Boxed:
        """The graph as ATen's operators, until `make` has made its program in the background. `record` keeps what serves until
        then for `explain()`."""

        def build() -> Boxed | None:
            with settings.restored(self.options):
                try:
                    compiled = make()
                    compiler.pack_weights(compiled, dict(zip(names, tiered.arguments(), strict=False)))
                    return sizes_seen.know(compiled.call, sized)
                except CompilerMissing as error:
                    why, failed = f"no C++ compiler: {error}", tuple[Failure, ...]()
                    say_once(why)
                except Exception as error:
                    self.failed.append(failure("graph", name, error, graph))
                    why, failed = self.failed[-1].reason, tuple(self.failed[-1:])
                compiler.record(name, library_calls(graph, why)[0], SOURCE, tiered.call, failed=failed)
                return None

        names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        repeatable = is_repeatable(graph)
        plain = self.kind == "inference" and repeatable and calls_aten_alone(graph)
        tiered = tiers.TieredGraph(self.tiers, name, as_traced(graph), build, repeatable, plain)
        record(tiered.call)
        tiered.begin()
        return tiered.call
