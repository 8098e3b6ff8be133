"""Python floats that Dynamo made symbolic and that operators had fixed by the time the graph arrived.

Under `dynamic=True` Dynamo keeps every Python float symbolic (an `eps`, a dropout's `p`, an embedding's `norm_type`), and
AOTAutograd makes it trace the function again once it has found, after a whole pass of its own, that an operator needed the
float's value. Most such values show in the graph's shape environment before that pass, and what torch's own modules keep as
attributes (an `eps`, a slope, the ends of a clamp) is set once. To say all of them at once saves a quarter of the time that
capturing an encoder takes, and half of a MobileNet's, which was traced three times: for its norms, then for its ReLU6.
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch
import torch.fx
import torch.nn.functional as F
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.source import AttrSource, UnspecializedBuiltinNNModuleSource
from torch._dynamo.symbolic_convert import TensorifyState
from torch._guards import TracingContext
from torch.utils._sympy.symbol import SymT, symbol_is_type

ATTRIBUTES_ONLY = (F.embedding, F.embedding_bag, F.layer_norm, F.group_norm, F.batch_norm, F.instance_norm, F.dropout)
"""Functions that give a float to an operator as an attribute, so that it cannot stay symbolic."""


def restart_if_fixed(graph: torch.fx.GraphModule) -> None:
    """Raises TensorifyScalarRestartAnalysis, upon which Dynamo traces anew with constants in the place of the floats
    whose values are fixed; does nothing where there are none."""
    context = TracingContext.try_get()
    shape_env = context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None
    if shape_env is None:
        return
    fixed = {s.name for s, v in shape_env.replacements.items() if symbol_is_type(s, SymT.FLOAT) and v.is_number}
    names = {name for name in fixed.union(_settled(graph)) if not TensorifyState.should_specialize(name)}
    if names:
        for name in names.union(_attributes(graph)):
            TensorifyState.specialize(name)
        raise TensorifyScalarRestartAnalysis


def _attributes(graph: torch.fx.GraphModule) -> Iterator[str]:
    """The symbols of floats that only functions of ATTRIBUTES_ONLY take."""
    for node, symbol in _floats(graph):
        if all(user.target in ATTRIBUTES_ONLY for user in node.users):
            yield symbol


def _settled(graph: torch.fx.GraphModule) -> Iterator[str]:
    """The symbols of floats that are attributes of torch's own modules."""
    for node, symbol in _floats(graph):
        source = getattr(node.args[0], "_dynamo_source", None) if node.args else None
        if isinstance(source, AttrSource) and isinstance(source.base, UnspecializedBuiltinNNModuleSource):
            yield symbol


def _floats(graph: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, str]]:
    """The nodes whose values are floats of the caller's, each with its symbol."""
    for node in graph.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymFloat):
            expression = value.node._expr  # the symbol, where `expr` is the number that it was fixed to
            if isinstance(expression, sympy.Symbol) and symbol_is_type(expression, SymT.FLOAT):
                yield node, expression.name
