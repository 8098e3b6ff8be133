"""Python floats that Dynamo made symbolic, and that operators need as numbers.

Under `dynamic=True` Dynamo keeps every Python float symbolic (an `eps`, a dropout's `p`, an embedding's `norm_type`).
AOTAutograd makes it retrace the function when it has found, after a whole pass of its own, that an operator needs the float's
value. And each call turns each such float into a tensor, 25 of them in a Llama of four layers. What modules keep as
attributes (an `eps`, a slope, the scale of an attention) is constant until a call finds another value there: polytile's
graphs have numbers there from the start (`settle_ahead`), and the next graph has what changed as an argument. Most others are
visible in the graph's shape environment before AOTAutograd's pass; reporting them at once saves that pass
(`restart_if_fixed`). Otherwise a MobileNet was traced three times, for its norms and for its ReLU6.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import sympy
import torch
import torch.fx
import torch.nn.functional as F
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.source import AttrSource, ChainedSource, UnspecializedNNModuleSource
from torch._dynamo.symbolic_convert import InstructionTranslator, TensorifyState
from torch._guards import TracingContext
from torch.utils._sympy.symbol import SymT, symbol_is_type

ATTRIBUTES_ONLY = (F.embedding, F.embedding_bag, F.layer_norm, F.group_norm, F.batch_norm, F.instance_norm, F.dropout)
"""Functions that pass a float to an operator as an attribute, so that it cannot stay symbolic."""


def restart_if_fixed(graph: torch.fx.GraphModule) -> None:
    """Raise TensorifyScalarRestartAnalysis, which makes Dynamo retrace with constants for the floats whose values are fixed. Does
    nothing if there are none."""
    context = TracingContext.try_get()
    shape_env = context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None
    if shape_env is None:
        return
    fixed = {s.name for s, v in shape_env.replacements.items() if symbol_is_type(s, SymT.FLOAT) and v.is_number}
    names = {name for name in fixed.union(_settled(graph.graph)) if not TensorifyState.should_specialize(name)}
    if names:
        for name in names.union(_attributes(graph.graph)):
            TensorifyState.specialize(name)
        raise TensorifyScalarRestartAnalysis


def settle_ahead() -> None:
    """Make Dynamo give polytile's graphs numbers for the floats that modules keep.

    Dynamo does so when it retraces a graph; asked for a name, this set knows those of the graph that is about to be compiled.
    Calling it again has no effect.
    """
    known = TensorifyState.force_specializations
    if not isinstance(known, _Settled):
        TensorifyState.force_specializations = _Settled(known)


class _Settled(set[str]):
    """The names of floats that Dynamo is to fix, including those of the graph being compiled for polytile's backend. Names are
    few and recur in other graphs: each graph has its own."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self.of: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()

    def __contains__(self, name: object) -> bool:
        output = None if super().__contains__(name) else _being_compiled()
        if output is None:
            return super().__contains__(name)
        found = self.of.setdefault(output.shape_env, set())
        found.update(_settled(output.graph))  # after one query, Dynamo removes them from the graph
        return name in found


def _being_compiled() -> Any:
    """The graph that this thread is tracing, if polytile will compile it; else None."""
    try:
        output = InstructionTranslator.current_tx().output
    except AttributeError:  # nothing is being traced
        return None
    compiler: Any = output.compiler_fn
    while hasattr(compiler, "_torchdynamo_orig_backend"):
        compiler = compiler._torchdynamo_orig_backend
    compiler = getattr(compiler, "compiler_fn", compiler)  # unwrap torch.compile's wrapper
    return output if str(getattr(compiler, "__module__", "")).startswith("polytile.") else None


def _attributes(graph: torch.fx.Graph) -> Iterator[str]:
    """The symbols of floats that only functions in ATTRIBUTES_ONLY take."""
    for node, symbol in _floats(graph):
        if all(user.target in ATTRIBUTES_ONLY for user in node.users):
            yield symbol


def _settled(graph: torch.fx.Graph) -> Iterator[str]:
    """The symbols of floats that are attributes of modules, and have not been seen to change."""
    for node, symbol in _floats(graph):
        given = node.args[0].meta.get("grapharg") if node.args and isinstance(node.args[0], torch.fx.Node) else None
        source = getattr(given, "source", None)
        if isinstance(source, AttrSource) and _of_module(source) and not _changed(source, node.meta["example_value"].node.hint):
            yield symbol


def _of_module(source: Any) -> bool:
    """Whether it is an attribute of a module, or of what a module keeps."""
    while isinstance(source, ChainedSource):
        if isinstance(source, UnspecializedNNModuleSource):
            return True
        source = source.base
    return False


_first_values: dict[tuple[Any, Any], float] = {}
"""By traced function and source, the value that the first graph was made with; NaN once another one was found."""


def _changed(source: AttrSource, value: float) -> bool:
    """Whether graphs of the function being traced have been made with different values of a float."""
    key = (InstructionTranslator.current_tx().f_code, source)
    if _first_values.setdefault(key, value) != value:
        _first_values[key] = math.nan
        return True
    return False


def _floats(graph: torch.fx.Graph) -> Iterator[tuple[torch.fx.Node, str]]:
    """The nodes whose values are the caller's floats, each with its symbol."""
    for node in graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymFloat):
            expression = value.node._expr  # the symbol; `expr` would be the number to which it was fixed
            if isinstance(expression, sympy.Symbol) and symbol_is_type(expression, SymT.FLOAT):
                yield node, expression.name
