"""The torch.compile backend: Dynamo graph → AOTAutograd → ATen graphs → compiled programs."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
import torch.fx
from torch._dynamo import register_backend
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import unset_fake_temporarily

from polytile import options as settings
from polytile import runtime
from polytile.counters import counters
from polytile.errors import CompilerMissing
from polytile.frontend.graph import OperatorReport, lower_graph
from polytile.frontend.lower.decompositions import decompositions

log = logging.getLogger("polytile")


def polytile(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    hints: Any = None,
) -> Callable[..., Any]:
    """Compiles one Dynamo graph; `torch.compile(f, backend="polytile", dynamic=True)` calls it.

    `options` are rows of `polytile.options`; raises OptionError for one that is not. `mode` is accepted for torch.compile's
    sake: "default" and None mean the same.
    """
    given = settings.check(options or {}, "options= of torch.compile")
    if mode not in (None, "default"):
        warnings.warn(f"polytile has no mode {mode!r}; it tunes as its options say (see docs/options.md).", stacklevel=2)
    with settings.override(**given):
        runtime.prepare_launcher()
        compilers = _Compilers(given, hints)
        return aot_module_simplified(
            graph,
            example_inputs,
            fw_compiler=compilers.forward,
            bw_compiler=compilers.backward,
            inference_compiler=compilers.inference,
            decompositions=decompositions(),
            partition_fn=min_cut_rematerialization_partition,
            keep_inference_input_mutations=True,
        )


class _Compilers:
    """AOTAutograd's three compilers under one compile's options; the backward one may run long after the compile."""

    def __init__(self, given: Mapping[str, Any], hints: Any) -> None:
        self.given, self.hints = dict(given), hints

    def inference(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return self._compile(graph, inputs, "inference")

    def forward(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return self._compile(graph, inputs, "forward")

    def backward(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return self._compile(graph, inputs, "backward")

    def _compile(self, graph: torch.fx.GraphModule, inputs: Sequence[Any], kind: str) -> Callable[..., Any]:
        from polytile import compiler

        with settings.override(**self.given):
            name = compiler.program_name(kind)
            if settings.get("debug") >= 3:
                log.info("%s", graph.print_readable(print_output=False))
            foreign = foreign_devices(graph)
            if foreign:
                why = f"polytile generates no kernels for {', '.join(foreign)} yet"
                return _as_library_calls(graph, name, why)
            lowered = lower_graph(graph, name)
            with unset_fake_temporarily():  # AOTAutograd compiles under a mode that would make every new tensor a fake one
                try:
                    compiled = compiler.compile_program(lowered, self.given, traced_sizes(graph))
                except CompilerMissing as error:
                    return _as_library_calls(graph, name, f"no C++ compiler: {error}")
                if self.hints is not None:
                    compiler.warm(compiled, hinted_sizes(self.hints, graph))
            return compiled


def traced_sizes(graph: torch.fx.GraphModule) -> dict[sympy.Symbol, int]:
    """The value that the tracer saw of every size symbol of the graph's inputs. Reads hints; never specialises."""
    found: dict[sympy.Symbol, int] = {}
    for number in _symbolic_numbers(graph):
        env = number.node.shape_env
        for symbol in number.node.expr.free_symbols:
            value = _hint(env, symbol)
            if value is not None:
                found[symbol] = value
    return found


def _symbolic_numbers(graph: torch.fx.GraphModule) -> list[Any]:
    numbers = []
    for node in graph.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta.get("val")
        parts = [value] if not isinstance(value, torch.Tensor) else [*value.shape, *value.stride()]
        numbers += [p for p in parts if isinstance(p, torch.SymInt) and isinstance(p.node.expr, sympy.Expr)]
    return numbers


def _hint(env: Any, symbol: sympy.Symbol) -> int | None:
    """ShapeEnv keeps traced values under different names in different versions of torch."""
    for table in ("backed_var_to_val", "var_to_val"):
        values = getattr(env, table, None)
        if values is not None and symbol in values:
            return int(values[symbol])
    return None


def hinted_sizes(hints: Any, graph: torch.fx.GraphModule) -> list[dict[sympy.Symbol, int]]:
    """Every combination of the hints, as values of the graph's size symbols.

    `hints` is a list of sizes (each one stands for every dynamic size at once), or a mapping from a symbol to its list: the
    ShapeEnv's name ("s77"), or "s0", "s1", ... for the first, second, ... dynamic size in argument order. Symbols that are not
    named keep the traced value. Raises ValueError for a name that fits no symbol.
    """
    traced = traced_sizes(graph)
    order = list(traced)
    if not isinstance(hints, Mapping):
        return [{s: int(h) for s in order} for h in hints]
    named = {s.name: s for s in order}
    chosen: dict[sympy.Symbol, list[int]] = {}
    for name, values in hints.items():
        position = int(name[1:]) if name[:1] == "s" and name[1:].isdigit() else -1
        symbol = named.get(name) or (order[position] if 0 <= position < len(order) else None)
        if symbol is None:
            known = ", ".join(f"s{k}" for k in range(len(order))) or "none: every size is static"
            raise ValueError(f"hints= names {name!r}, which is no dynamic size of this graph; its dynamic sizes: {known}.")
        chosen[symbol] = [int(v) for v in values]
    combinations = itertools.product(*chosen.values())
    return [{**traced, **dict(zip(chosen, c, strict=True))} for c in combinations]


_warned: set[str] = set()


def foreign_devices(graph: torch.fx.GraphModule) -> list[str]:
    """The device types of the graph's tensors for which there is no code generator."""
    values = [v for node in graph.graph.nodes for v in torch.utils._pytree.tree_leaves(node.meta.get("val"))]
    found = {v.device.type for v in values if isinstance(v, torch.Tensor)}
    return sorted(found - {"cpu"})


def _as_library_calls(graph: torch.fx.GraphModule, name: str, why: str) -> Callable[..., Any]:
    """Every operator as a library call: right, not fast, and said so."""
    from polytile import compiler

    if why not in _warned:
        _warned.add(why)
        log.warning("polytile generates no kernels for this graph and runs ATen's instead: %s", why)
    reports = []
    for node in graph.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            reports.append(OperatorReport(str(node.target), "library", why))
            counters.add_library_call(str(node.target))
    counters.add("graphs_compiled")
    return compiler.record_library_program(name, tuple(reports), _Interpreted(graph))


class _Interpreted:
    """Runs the ATen graph node by node."""

    source = "# the ATen graph is run as it is"

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.graph = graph

    def __call__(self, args: list[Any]) -> list[Any]:
        values = list(args)
        args.clear()
        return list(self.graph(*values))


def compile(
    function: Callable[..., Any] | None = None,
    *,
    hints: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = True,
    fullgraph: bool = False,
) -> Any:
    """`torch.compile` with polytile as the backend and sizes symbolic from the start; also usable as a decorator.

    `hints`: sizes for which kernels are chosen and compiled before the first call needs them: a list that every dynamic size
    takes in turn, or a mapping from "s0", "s1", ... (dynamic sizes in argument order) to lists. `options`: rows of
    `polytile.options`. Raises OptionError for an unknown option or a bad value.
    """
    if function is None:
        return lambda f: compile(f, hints=hints, options=options, dynamic=dynamic, fullgraph=fullgraph)
    given = settings.check(options or {}, "options= of polytile.compile")
    if hints is not None:
        flat = [v for values in hints.values() for v in values] if isinstance(hints, Mapping) else list(hints)
        if not all(isinstance(v, int) and v >= 0 for v in flat):
            raise ValueError(f"hints= takes sizes, integers of 0 or more; it was given {hints!r}.")

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return polytile(graph, inputs, options=given, hints=hints)

    return torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=fullgraph)


def register() -> None:
    """Makes `torch.compile(backend="polytile")` work; importing polytile calls it."""
    from torch._dynamo.backends import registry

    if "polytile" not in registry._COMPILER_FNS:
        register_backend(polytile, name="polytile")
