"""A module as one graph of ATen operators whose weights are constants: by torch.export, with polytile's decompositions."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils._pytree import TreeSpec, tree_leaves, tree_map_with_path

from polytile.errors import PackageError
from polytile.frontend.attention.patterns import recognise
from polytile.frontend.attention.regions import mark_computed
from polytile.frontend.attention.whole import attention
from polytile.frontend.channels_last import lay_channels_last
from polytile.frontend.graph import Lowered, lower_graph
from polytile.frontend.graph_checks import unsupported
from polytile.frontend.hints import Values, sizes_of
from polytile.frontend.lower.decompositions import decompositions

aten = torch.ops.aten

HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
"""Kinds of inputs that a package holds."""


@dataclass(frozen=True)
class Given:
    """A value that the caller passes: the name of the graph's input, and the constant that it has to be, if it is neither a
    tensor nor an integer that may vary."""

    name: str
    constant: Any = None
    is_constant: bool = False


@dataclass(frozen=True)
class Result:
    """A value that the caller gets: a number or None as it is, or the next result of the program."""

    constant: Any = None
    is_constant: bool = False
    is_number: bool = False


@dataclass(frozen=True, eq=False)
class Captured:
    """A lowered graph, what its callers pass and get, and what is known of its sizes."""

    lowered: Lowered
    traced: Values
    bounds: Mapping[str, tuple[int, int]]
    given: tuple[Given, ...]
    results: tuple[Result, ...]
    in_spec: TreeSpec
    out_spec: TreeSpec
    parameters: tuple[str, ...]
    """Names of the positional parameters, by which callers may give them too."""
    device: torch.device


def exported(
    model: Callable[..., Any] | ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ExportedProgram:
    """The exported program of a module or function; what polytile.compile made of one is exported as it was before. Without
    `dynamic_shapes` every size above 1 may vary. Raises PackageError for what has no form as one graph."""
    if isinstance(model, ExportedProgram):
        return model
    model = getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", None) or model
    module = model if isinstance(model, torch.nn.Module) else _Function(model)
    if dynamic_shapes is None:
        dynamic_shapes = _all_dynamic(module, tuple(args), dict(kwargs or {}))
    try:
        with torch.no_grad():
            return torch.export.export(module, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
    except Exception as error:
        raise PackageError(
            f"the model cannot be packaged, since torch.export makes no graph of it ({type(error).__name__}: {error}). Make it "
            "one graph, or pass what torch.export.export gives for it."
        ) from error


class _Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _all_dynamic(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dynamic shapes by which torch.export finds out what may vary."""

    def of(_: Any, value: Any) -> Any:
        return [Dim.AUTO] * value.ndim if isinstance(value, torch.Tensor) else None

    if isinstance(module, _Function):
        return (tuple(tree_map_with_path(of, args)), tree_map_with_path(of, kwargs)) if kwargs else (
            tuple(tree_map_with_path(of, args)),
        )
    names = list(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    values = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    return {name: tree_map_with_path(of, values[name]) for name in names}


def capture(program: ExportedProgram, name: str) -> Captured:
    """The graph of an exported program, lowered. Raises PackageError where it has no form as a package."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)  # torch copies its own deprecated class
        program = program.run_decompositions(_table())
    graph, signature = program.graph_module, program.graph_signature
    _refuse_changes(signature)
    given = _given(program)
    _hold_weights(program, graph)
    if why := unsupported(graph):
        raise PackageError(f"the program cannot be packaged: {why}.")
    device = _device(graph)
    recognise(graph)
    mark_computed(graph.graph)
    lay_channels_last(graph.graph, training=False, weights={})
    traced = sizes_of(graph)
    lowered = lower_graph(graph, name, {})
    bounds = {
        str(symbol): (int(limits.lower), int(limits.upper) if limits.upper.is_Integer else 1 << 62)
        for symbol, limits in program.range_constraints.items()
    }
    spec = program.call_spec
    if spec.in_spec is None or spec.out_spec is None:
        raise PackageError("the exported program does not say how it is called; export it again with torch.export.export.")
    results = tuple(_result(output.arg) for output in signature.output_specs if output.kind is OutputKind.USER_OUTPUT)
    return Captured(lowered, traced, bounds, given, results, spec.in_spec, spec.out_spec, _parameters(program), device)


def _parameters(program: ExportedProgram) -> tuple[str, ...]:
    """Where each positional argument is one tensor, its input is called like the parameter."""
    positional = program.call_spec.in_spec.unflatten(range(program.call_spec.in_spec.num_leaves))[0]
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    return tuple(names[: len(positional)]) if all(type(each) is int for each in positional) else ()


def _table() -> dict[Any, Callable[..., Any]]:
    """The decompositions: torch's for operators without kernels of their own, polytile's for others."""
    torchs = torch.export.default_decompositions()
    table = {op: rule for op, rule in torchs.items() if op._can_decompose()}
    table.update(decompositions())
    table[aten.scaled_dot_product_attention.default] = attention
    return table


def _refuse_changes(signature: Any) -> None:
    changed = {
        **{node: f"the buffer {buffer!r}" for node, buffer in signature.buffers_to_mutate.items()},
        **{node: f"its input {name!r}" for node, name in signature.user_inputs_to_mutate.items()},
    }
    if changed:
        raise PackageError(
            f"the program changes {', '.join(changed.values())}, and packages change nothing that they are given or hold. Call "
            "eval() on the model first; or have it take the state as an input and return the new one."
        )


def _device(graph: torch.fx.GraphModule) -> torch.device:
    """The device of all tensors. Raises PackageError where they are on several, or on one for which packages have no form."""
    values = {node.name: node.meta.get("val") for node in graph.graph.nodes}
    on = {value.device: name for name, value in values.items() if isinstance(value, torch.Tensor)}
    if len(on) > 1:
        told = " and ".join(f"{device} ({name})" for device, name in on.items())
        raise PackageError(f"the program has tensors on {told}, and packages hold programs for one device. Move all to one.")
    device = next(iter(on), torch.device("cpu"))
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and torch.version.hip):
        kind = "AMD's GPUs" if device.type == "cuda" else device.type
        raise PackageError(
            f"the program runs on {device}, and packages have no form yet of kernels for {kind}: they hold programs for a CPU or "
            "NVIDIA's GPUs. Ship a warm cache directory instead (docs/serving.md)."
        )
    return device


def _given(program: ExportedProgram) -> tuple[Given, ...]:
    inputs = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            constant = isinstance(spec.arg, ConstantArgument)
            inputs.append(Given(spec.arg.name, getattr(spec.arg, "value", None), constant))
        elif spec.kind not in HELD:
            raise PackageError(f"the program takes {spec.arg.name!r}, a {spec.kind.name.lower()}, which packages cannot hold.")
    return tuple(inputs)


def _result(argument: Any) -> Result:
    if isinstance(argument, ConstantArgument):
        return Result(argument.value, True)
    return Result(is_number=type(argument).__name__.startswith("Sym"))


def _hold_weights(program: ExportedProgram, graph: torch.fx.GraphModule) -> None:
    """Makes constants of the inputs that are weights, and takes away those that have to be constants of the caller."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    outputs = graph.graph.output_node()
    for node in list(graph.graph.find_nodes(op="placeholder")):
        spec = specs[node.name]
        if spec.kind in HELD:
            value = program.state_dict.get(spec.target, program.constants.get(spec.target))
            if not isinstance(value, torch.Tensor):
                raise PackageError(f"the program holds {spec.target!r}, which is no tensor: packages hold tensors alone.")
            setattr(graph, node.name, torch.nn.Buffer(value.detach(), persistent=False))
            with graph.graph.inserting_before(node):
                held = graph.graph.get_attr(node.name)
            held.meta = dict(node.meta)
            node.replace_all_uses_with(held)
            graph.graph.erase_node(node)
            held.name = node.name
        elif isinstance(spec.arg, ConstantArgument):
            graph.graph.erase_node(node)  # where the graph uses the value, it is a constant there
    values: Sequence[Any] = tree_leaves(outputs.args[0], is_leaf=lambda value: value is None)
    kept = [
        value
        for value, spec in zip(values, program.graph_signature.output_specs, strict=True)
        if not isinstance(spec.arg, ConstantArgument)
    ]
    outputs.args = (tuple(kept),)
