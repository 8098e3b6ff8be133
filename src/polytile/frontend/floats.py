"""Python floats that Dynamo made symbolic and that operators had fixed by the time the graph arrived.

Under `dynamic=True` Dynamo keeps every Python float symbolic (an `eps`, a dropout's `p`, an embedding's `norm_type`), and
AOTAutograd makes it trace the function again once it has found, after a whole pass of its own, that an operator needed the
float's value. Most such values show in the graph's shape environment before that pass. To say so at once saves a quarter
of the time that capturing an encoder takes.
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch
import torch.fx
import torch.nn.functional as F
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
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
    names = {name for name in fixed if not TensorifyState.should_specialize(name)}
    if names:
        for name in names.union(_attributes(graph)):
            TensorifyState.specialize(name)
        raise TensorifyScalarRestartAnalysis


def _attributes(graph: torch.fx.GraphModule) -> Iterator[str]:
    """The symbols of floats that only functions of ATTRIBUTES_ONLY take."""
    for node in graph.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymFloat) and all(user.target in ATTRIBUTES_ONLY for user in node.users):
            expression = value.node.expr
            if isinstance(expression, sympy.Symbol) and symbol_is_type(expression, SymT.FLOAT):
                yield expression.name
