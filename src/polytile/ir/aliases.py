"""Which buffers of a program may alias each other as a result of library calls."""

from __future__ import annotations

from polytile.ir.program import Extern, Program

COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional")
"""Namespaces of collective operators. Until `wait_tensor`, a collective may read and write its arguments and results.
`wait_tensor` returns its argument itself, although its schema does not say so."""


def maybe_aliased(program: Program) -> set[str]:
    """Buffers that may share memory because a library call may return an argument, or a part of it, as its result."""
    aliased: set[str] = set()
    for operation in program.operations:
        if isinstance(operation, Extern) and returns_alias(operation.target):
            aliased |= operation.reads() | operation.writes()
    return aliased


def maybe_returned(program: Program) -> set[str]:
    """The buffers that the caller may get: outputs, and what library calls may have returned an output as a view of."""
    found = program.output_buffers()
    for operation in reversed(program.operations):
        if isinstance(operation, Extern) and operation.writes() & found and returns_alias(operation.target):
            found |= operation.reads()
    return found


def returns_alias(target: object) -> bool:
    """Whether a result may share memory with an argument: the schema says so, there is no schema, or the operator is a
    collective."""
    schema = getattr(target, "_schema", None)
    if schema is None or getattr(target, "namespace", "") in COLLECTIVES:
        return True
    return any(r.alias_info is not None for r in schema.returns)
