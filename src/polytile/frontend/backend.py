"""The torch.compile backend: Dynamo graph → AOTAutograd → ATen graphs → compiled programs."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch._dynamo.exc import ShortenTraceback
from torch._dynamo.utils import flatten_graph_inputs
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import unset_fake_temporarily

from polytile import compiler, debug, runtime
from polytile import options as settings
from polytile.errors import CompilerMissing, HintError, NotInPlan, OptionError, PlanError
from polytile.frontend import hints as hinted
from polytile.frontend.channels_last import lay_channels_last
from polytile.frontend.eager import SOURCE, library_calls
from polytile.frontend.floats import restart_if_fixed
from polytile.frontend.graph import lower_graph, unsupported
from polytile.frontend.hints import Hints, Values
from polytile.frontend.lower.decompositions import decompositions
from polytile.frontend.overwritten import keep_overwritten
from polytile.frontend.resizing import kept_whole
from polytile.frontend.weights import weights_of

Boxed = Callable[[list[Any]], Any]


def polytile(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles one Dynamo graph; `torch.compile(f, backend="polytile", dynamic=True)` calls it.

    `options` are rows of `polytile.options`; raises OptionError for one that is not. `mode` is accepted for
    torch.compile's sake: "default" and None mean the same, others draw a warning.
    """
    if mode not in (None, "default"):
        warnings.warn(
            f"polytile has no mode {mode!r}; it tunes as its options say (see docs/options.md).", stacklevel=2
        )
    with _shown_plainly():
        given = settings.check(options or {}, "options= of torch.compile")
        return _compile(graph, example_inputs, given, (), (), strict=False)


def compile(
    function: Callable[..., Any] | None = None,
    *,
    hints: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    compile_ahead: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = True,
    fullgraph: bool = False,
) -> Any:
    """See `polytile.compile`."""
    given = settings.check(options or {}, "options= of polytile.compile")
    ahead = hinted.checked(compile_ahead, "compile_ahead")
    backend = Backend(tuple(sorted(given.items())), hinted.checked(hints), ahead)
    return torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=fullgraph)


@dataclass(frozen=True)
class Backend:
    """What `polytile.compile` gives to torch.compile: the backend with options and hints."""

    options: tuple[tuple[str, Any], ...] = ()
    hints: Hints = ()
    compile_ahead: Hints = ()
    _graphs: list[None] = field(default_factory=list, compare=False, repr=False)

    __name__ = "polytile"

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
    traced = hinted.sizes_of(graph)
    wanted = [*hinted.combinations(hints, traced, strict), *hinted.marked(graph, traced)]
    early = hinted.combinations(ahead, traced, strict, "compile_ahead")
    with settings.override(**given), _collector_at_rest(), kept_whole():
        runtime.prepare_launcher()
        if any(isinstance(value, torch.Tensor) and value.is_cuda for value in example_inputs):
            from polytile.kernels.triton.loops import prepare  # what a GPU needs is imported where there is one

            prepare()
        restart_if_fixed(graph)
        return aot_module_simplified(
            graph,
            example_inputs,
            fw_compiler=_Compiler("forward", given, wanted, early),
            bw_compiler=_Compiler("backward", given, wanted, early),
            inference_compiler=_Compiler("inference", given, wanted, early),
            decompositions=decompositions(),
            partition_fn=_partition,
            keep_inference_input_mutations=True,
        )


def _partition(
    joint: torch.fx.GraphModule, joint_inputs: Any, **given: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Splits the graph of a training step into forward and backward, which agree on how what is saved lies in memory."""
    keep_overwritten(joint.graph, joint_inputs)
    lay_channels_last(joint.graph, training=True)
    return min_cut_rematerialization_partition(joint, joint_inputs, **given)


@contextlib.contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Switches the garbage collector off within the block. A graph and its tracing are hundreds of thousands of objects, all of
    them alive: while an encoder's training step was compiled, the collector searched them several times, for 0.7 s in all."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


CALLERS = (HintError, NotInPlan, OptionError, PlanError)
"""Errors about what the caller has asked for."""


@contextlib.contextmanager
def _shown_plainly() -> Iterator[None]:
    """Errors about what the caller asked for leave the block as kinds that Dynamo passes on unchanged; any other error of a
    backend it wraps in one of its own, with advice for compiler developers."""
    try:
        yield
    except CALLERS as error:
        raise error if isinstance(error, ShortenTraceback) else _handed_on(type(error))(str(error)) from None


def _handed_on(kind: type[Exception]) -> type[Exception]:
    """`kind` as one of the errors that Dynamo hands on as they are, under the same name."""

    def initialise(self: Any, message: str) -> None:
        Exception.__init__(self, message)
        self.first_useful_frame = None

    members = {"__init__": initialise, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind, ShortenTraceback), members)


@dataclass(frozen=True)
class _Compiler:
    """One of AOTAutograd's three compilers under one compile's options; the backward one may run long after it."""

    kind: str
    options: Mapping[str, Any]
    hints: Sequence[Values]
    ahead: Sequence[Values] = ()

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Boxed:
        if self.kind != "backward":
            return self._compile(gm)
        # Autograd may compile and run it in the midst of a function that Dynamo is looking at; it must not look here.
        untraced = torch._dynamo.disable(self._compile, reason="polytile compiles a backward graph")
        return torch._dynamo.disable(untraced(gm), reason="a compiled backward graph")

    def _compile(self, graph: torch.fx.GraphModule) -> Boxed:
        with settings.override(**self.options):
            name = compiler.program_name(self.kind)
            debug.show(3, lambda: graph.print_readable(print_output=False))
            why = unsupported(graph)
            if not why:
                try:
                    return self._program(graph, name)
                except CompilerMissing as error:
                    why = f"no C++ compiler: {error}"
            operators, call = library_calls(graph, why)
            return compiler.record(name, operators, SOURCE, call).call

    def _program(self, graph: torch.fx.GraphModule, name: str) -> Boxed:
        """The graph lowered and compiled. Raises CompilerMissing where there is no C++ compiler."""
        weights = weights_of(graph, self.kind)
        if self.kind == "inference":
            lay_channels_last(graph.graph, training=False, weights=weights)
        lowered = lower_graph(graph, name, weights)
        with unset_fake_temporarily():  # AOTAutograd's mode would make every new tensor a fake one
            traced = hinted.sizes_of(graph)
            return compiler.compile_program(lowered, self.options, traced, self.hints, self.ahead).call
