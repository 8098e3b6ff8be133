"""Which buffers of a program may share memory with each other, as far as library calls bring that about."""

from __future__ import annotations

from polytile.ir.program import Extern, Program


def maybe_aliased(program: Program) -> set[str]:
    """Buffers that a library call takes and may return as its result, or as a part of it, and everything that such a call
    returns."""
    found: set[str] = set()
    for operation in program.operations:
        if isinstance(operation, Extern) and returns_alias(operation.target):
            found |= operation.reads() | operation.writes()
    return found


def returns_alias(target: object) -> bool:
    """Whether a result may share memory with an argument: its schema says so, or it has none."""
    schema = getattr(target, "_schema", None)
    return schema is None or any(r.alias_info is not None for r in schema.returns)


__all__ = ["maybe_aliased", "returns_alias"]
