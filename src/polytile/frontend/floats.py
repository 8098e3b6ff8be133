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

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch
import torch.fx
import torch.nn.functional as F
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import AttrSource, ChainedSource, UnspecializedNNModuleSource
from torch._dynamo.symbolic_convert import TensorifyState
from torch._dynamo.variables import ConstantVariable
from torch._dynamo.variables.builder import VariableBuilder
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
    names = {name for name in fixed if not TensorifyState.should_specialize(name)}
    if names:
        for name in names.union(_attributes(graph.graph)):
            TensorifyState.specialize(name)
        raise TensorifyScalarRestartAnalysis


def settle_ahead() -> None:
    """Make Dynamo give polytile's graphs numbers for the floats that modules keep.

    Dynamo's guards on numbers are comparisons in C. What was symbolic before it became a number is compared in Python, by each
    call, which takes tens of microseconds for a Transformer of four layers. Calling it again has no effect.
    """
    if not hasattr(VariableBuilder.wrap_symfloat, "settles"):
        VariableBuilder.wrap_symfloat = _settling(VariableBuilder.wrap_symfloat)  # type: ignore[method-assign, assignment]


def _settling(wrap: Callable[[Any, float], Any]) -> Callable[[Any, float], Any]:
    """Dynamo's function that makes a float symbolic, for all but those that are settled."""

    @functools.wraps(wrap)
    def wrap_symfloat(builder: Any, value: float) -> Any:
        source, output = builder.source, builder.tx.output
        is_kept = isinstance(source, AttrSource) and _of_module(source)
        if not is_kept or not _is_polytiles(output) or _changed(output, source, value):
            return wrap(builder, value)
        builder.install_guards(GuardBuilder.CONSTANT_MATCH)
        return ConstantVariable.create(value=value, source=source)

    wrap_symfloat.settles = True  # type: ignore[attr-defined]
    return wrap_symfloat


def _is_polytiles(output: Any) -> bool:
    """Whether polytile will compile a graph that is being traced."""
    compiler: Any = output.compiler_fn
    while hasattr(compiler, "_torchdynamo_orig_backend"):
        compiler = compiler._torchdynamo_orig_backend
    compiler = getattr(compiler, "compiler_fn", compiler)  # unwrap torch.compile's wrapper
    return str(getattr(compiler, "__module__", "")).startswith("polytile.")


def _attributes(graph: torch.fx.Graph) -> Iterator[str]:
    """The symbols of floats that only functions in ATTRIBUTES_ONLY take."""
    for node, symbol in _floats(graph):
        if all(user.target in ATTRIBUTES_ONLY for user in node.users):
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


def _changed(output: Any, source: AttrSource, value: float) -> bool:
    """Whether graphs of the function being traced have been made with different values of a float."""
    key = (output.root_tx.f_code, source)
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
