"""Library calls for ATen operators: the results they return and the arguments they mutate."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import torch
import torch.fx
from torch.utils._pytree import tree_leaves, tree_map

from polytile.frontend.lower.overloads import named_arguments
from polytile.frontend.lower.value import Tensor
from polytile.ir.buffer import View

WITH_A_STATE = ("run_with_rng_state", "graphsafe_run_with_rng_state")
"""Higher-order operators that run another operator with a given random number state. torch records no fake results for them."""


class Flat:
    """Wraps an operator with nested results to return one flat list. `like` has the structure of the results."""

    def __init__(self, target: Any, like: Any) -> None:
        self.target, self.__name__ = target, operator_name(target)
        self.structure = tree_map(lambda _: None, like)
        for name in ("_schema", "namespace", "tags"):  # attributes that passes read
            if hasattr(target, name):
                setattr(self, name, getattr(target, name))

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        return _flat(self.target(*args, **kwargs), self.structure)

    def __str__(self) -> str:
        return self.__name__


class WithCopies:
    """Wraps an operator that returns views of its arguments to return copies, with the conjugate bit preserved."""

    def __init__(self, target: Any) -> None:
        self.target, self.__name__ = target, operator_name(target)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return tree_map(
            lambda view: view.conj().clone().conj() if view.is_conj() else view.clone(), self.target(*args, **kwargs)
        )

    def __str__(self) -> str:
        return self.__name__


def _flat(result: Any, structure: Any) -> list[Any]:
    """The leaves of `result` at the places where `structure` has leaves. Results beyond the structure are unused."""
    if isinstance(structure, tuple | list):
        return [leaf for part, inner in zip(result, structure, strict=False) for leaf in _flat(part, inner)]
    if isinstance(structure, dict):
        return [leaf for key, inner in structure.items() for leaf in _flat(result[key], inner)]
    return [result]


def is_nested(target: Any, results: Any) -> bool:
    """Whether the results of a call may contain lists or tuples."""
    if not isinstance(target, torch._ops.OpOverload):
        return True
    return isinstance(results, tuple | list) and any(isinstance(part, tuple | list | dict) for part in results)


def results_of(node: torch.fx.Node) -> Any:
    """The fake results of a node. torch records none for some higher-order operators; their `getitem` users have them."""
    if "val" in node.meta:
        return node.meta["val"]
    picked: dict[Any, Any] = {user.args[1]: results_of(user) for user in node.users if user.target is operator.getitem}
    return tuple(picked.get(k) for k in range(max(picked) + 1)) if picked else None


def complete(graph: torch.fx.Graph) -> None:
    """Add the fake results that torch leaves out for operators run with a given random number state."""
    values = [node.meta.get("val") for node in graph.nodes]
    for node in graph.nodes:
        if str(node.target) not in WITH_A_STATE or "val" in node.meta:
            continue
        at = next((k for k, arg in enumerate(node.args) if isinstance(arg, torch._ops.OpOverload)), None)
        if at is None:  # it runs a higher-order operator; the getitem nodes have the results
            continue
        given = {name: value for name, value in node.kwargs.items() if name != "rng_state"}
        args, kwargs = torch.fx.map_arg((node.args[at + 1 :], given), lambda argument: argument.meta["val"])
        with torch._guards.detect_fake_mode(values) or contextlib.nullcontext():
            node.meta["val"] = node.args[at](*args, **kwargs)


def written_views(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[View]:
    """The arguments that an operator mutates according to its schema."""
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    given = named_arguments(target, args, kwargs)
    changed = [given.get(a.name) for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [v.view for v in tree_leaves(changed) if isinstance(v, Tensor) and v.view is not None]


def operator_name(target: Any) -> str:
    """The operator's name in reports: "aten.mm.default"."""
    return str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))
