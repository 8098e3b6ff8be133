"""ATen and prims operators by name, without those that the installed torch lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload


def overloads(names: str) -> list[OpOverload]:
    """The operators listed in `names`, separated by blanks.

    "packet.overload" is an overload in aten. "packet" is the default overload in aten, and also in prims if there is one.
    "prims.packet" is one in prims only. Names that this torch lacks are left out.
    """
    operators = []
    for name in names.split():
        namespace, _, rest = name.partition(".")
        if namespace == "prims":
            operators.append(_overload(torch.ops.prims, rest, "default"))
        elif rest:
            operators.append(_overload(torch.ops.aten, namespace, rest))
        else:
            operators += [_overload(torch.ops.aten, name, "default"), _overload(torch.ops.prims, name, "default")]
    return [op for op in operators if op is not None]


def all_overloads(name: str) -> list[OpOverload]:
    """Every overload of the aten operator `name`; none where this torch lacks it."""
    packet = getattr(torch.ops.aten, name, None)
    return [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []


def named_arguments(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names in the operator's schema, those that are left out by their defaults."""
    arguments = operator._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    return {**defaults, **{argument.name: value for argument, value in zip(arguments, args, strict=False)}, **kwargs}


def _overload(namespace: Any, packet: str, overload: str) -> OpOverload | None:
    operator = getattr(namespace, packet, None)
    return getattr(operator, overload) if operator is not None and overload in operator.overloads() else None
