"""Reads and writes parts of a program as JSON: canonical loops, expressions, sizes, views, and arguments of library calls."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from sympy.core.basic import Basic
from torch._ops import OpOverload
from torch.utils._sympy import functions, numbers

from polytile.ir import expr
from polytile.ir.buffer import Buffer, View
from polytile.ir.expr import Node
from polytile.ir.library_call import LibraryCall, Made, Ref
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.template import ComputedWeight, Grouping, PackedWeight, Scales

CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (Axis, Buffer, ComputedWeight, LibraryCall, Loop, Made, PackedWeight, Ref, Grouping, Scales, Store, View)
}
"""Dataclasses that are written field by field."""

NODES: dict[str, type[Node]] = {
    name: cls for name, cls in vars(expr).items() if isinstance(cls, type) and issubclass(cls, Node)
}

NUMBERS: dict[str, Basic] = {
    "oo": sympy.oo, "-oo": -sympy.oo, "nan": sympy.nan, "pi": sympy.pi, "E": sympy.E, "true": sympy.true, "false": sympy.false,
    "int_oo": numbers.int_oo, "-int_oo": -numbers.int_oo,
}  # fmt: skip
"""sympy's named numbers."""

ERRORS: dict[str, type[Exception]] = {error.__name__: error for error in (RuntimeError, ValueError, IndexError, TypeError)}
"""Exceptions that a program's checks raise."""

PLAIN = (bool, int, float, str, type(None))


class Unstorable(Exception):
    """Raised for a value that cannot be serialised; the message says which and why."""


class Writer:
    """Writes values as JSON.

    `classes` may be written in addition to CLASSES: dataclasses, enums, and classes whose objects store their constructor
    arguments in `made_from`. An object of the last kind that is referenced several times is written once, and read back as one
    object.
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self._classes = frozenset(CLASSES.values()) | frozenset(classes)
        self._shared: list[Any] = []
        self._places: dict[Any, int] = {}

    def document(self, value: Any) -> dict[str, Any]:
        """`value` as plain JSON values. Raises Unstorable."""
        written = self.write(value)
        return {"shared": self._shared, "value": written}

    def write(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind in (tuple, list):
            return [kind.__name__, *map(self.write, value)]
        if kind is dict:
            return ["dict", *([self.write(k), self.write(v)] for k, v in value.items())]
        if kind is frozenset:
            return ["frozenset", *map(self.write, sorted(value, key=str))]
        if isinstance(value, Node):
            return ["@", self._node(value)]
        if isinstance(value, Basic):
            return ["@", self._size(value)]
        if isinstance(value, enum.Enum) and kind in self._classes:
            return [kind.__name__, self.write(value.value)]
        if kind in self._classes and dataclasses.is_dataclass(kind):
            return [kind.__name__, *(self.write(getattr(value, field.name)) for field in dataclasses.fields(value))]
        if kind in self._classes:
            return ["@", self._object(value)]
        if kind in (torch.dtype, torch.layout, torch.memory_format):
            return ["torch", str(value).removeprefix("torch.")]
        if kind is torch.device:
            return ["device", str(value)]
        if kind is OpOverload:
            return ["operator", str(value)]
        if isinstance(value, type) and value in ERRORS.values():
            return ["error", value.__name__]
        raise Unstorable(f"{str(value)[:80]!r}, a {kind.__module__}.{kind.__qualname__}, has no form on disk")

    def _node(self, root: Node) -> int:
        for node in expr.walk(root):
            if id(node) not in self._places:
                values = [self.write(getattr(node, field.name)) for field in dataclasses.fields(node)]
                self._places[id(node)] = self._add([type(node).__name__, *values])
        return self._places[id(root)]

    def _object(self, value: Any) -> int:
        if id(value) not in self._places:
            self._places[id(value)] = self._add([type(value).__name__, *map(self.write, value.made_from)])
        return self._places[id(value)]

    def _size(self, value: Basic) -> int:
        key = type(value), value
        if key not in self._places:
            self._places[key] = self._add(self._written_size(value))
        return self._places[key]

    def _written_size(self, value: Basic) -> list[Any]:
        kind = type(value)
        if kind is sympy.Symbol:
            assumed = _assumptions(value)
            if sympy.Symbol(value.name, **assumed) != value:
                raise Unstorable(f"the symbol {value} is assumed to be more than its making says")
            return ["symbol", value.name, assumed]
        for name, number in NUMBERS.items():
            if value is number:
                return ["number", name]
        if isinstance(value, sympy.Integer):
            return ["integer", int(value)]
        if isinstance(value, sympy.Rational):
            return ["rational", int(value.p), int(value.q)]
        if kind is sympy.Float and sympy.Float(float(value)) == value:
            return ["float", float(value)]
        for home, module in HOMES.items():
            if getattr(module, kind.__name__, None) is kind and kind(*value.args) == value:
                return [home, kind.__name__, *map(self._size, value.args)]
        raise Unstorable(f"the size {value}, a {kind.__module__}.{kind.__qualname__}, has no form on disk")

    def _add(self, written: list[Any]) -> int:
        self._shared.append(written)
        return len(self._shared) - 1


HOMES: Mapping[str, Any] = {"sympy": sympy, "torch": functions}


def _assumptions(symbol: sympy.Symbol) -> dict[str, bool]:
    """The assumptions with which a symbol was created."""
    made_with = getattr(symbol, "_assumptions_orig", None)
    return dict(symbol._assumptions.generator if made_with is None else made_with)


class Reader:
    """Reads a document of Writer, with the same `classes`. A malformed document raises KeyError, IndexError, TypeError,
    ValueError or AttributeError (MALFORMED)."""

    def __init__(self, document: Mapping[str, Any], classes: Iterable[type] = ()) -> None:
        self._classes = {**CLASSES, **{cls.__name__: cls for cls in classes}}
        self._shared: list[Any] = []
        for written in document["shared"]:
            self._shared.append(self._read_shared(*written))
        self._value = document["value"]

    def value(self) -> Any:
        return self.read(self._value)

    def read(self, written: Any) -> Any:
        if not isinstance(written, list):
            return written
        kind, *rest = written
        if kind == "@":
            return self._shared[rest[0]]
        if kind == "tuple":
            return tuple(map(self.read, rest))
        if kind == "list":
            return list(map(self.read, rest))
        if kind == "dict":
            return {self.read(k): self.read(v) for k, v in rest}
        if kind == "frozenset":
            return frozenset(map(self.read, rest))
        if kind == "torch":
            return _checked(getattr(torch, rest[0]), (torch.dtype, torch.layout, torch.memory_format))
        if kind == "device":
            return torch.device(rest[0])
        if kind == "operator":
            return operator_named(rest[0])
        if kind == "error":
            return ERRORS[rest[0]]
        return self._classes[kind](*map(self.read, rest))

    def _read_shared(self, kind: str, *rest: Any) -> Any:
        if kind == "symbol":
            return sympy.Symbol(rest[0], **rest[1])
        if kind == "integer":
            return sympy.Integer(rest[0])
        if kind == "rational":
            return sympy.Rational(*rest)
        if kind == "float":
            return sympy.Float(rest[0])
        if kind == "number":
            return NUMBERS[rest[0]]
        if kind in HOMES:
            cls = getattr(HOMES[kind], rest[0])
            if not (isinstance(cls, type) and issubclass(cls, Basic)):
                raise ValueError(f"{rest[0]!r} is no class of sizes")
            return cls(*(self._shared[place] for place in rest[1:]))
        if kind in self._classes:
            return self._classes[kind](*map(self.read, rest))
        cls = NODES[kind]
        names = (field.name for field in dataclasses.fields(cls))
        return expr.make(cls, **dict(zip(names, map(self.read, rest), strict=True)))


MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""Exceptions from reading a malformed document, or one of another version."""


def operator_named(name: str) -> OpOverload:
    """The operator of a name such as "aten.add.Tensor". Raises AttributeError if torch has none of that name."""
    namespace, operator, overload = name.split(".")
    return _checked(getattr(getattr(getattr(torch.ops, namespace), operator), overload), (OpOverload,))


def _checked(value: Any, kinds: tuple[type, ...]) -> Any:
    if not isinstance(value, kinds):
        raise ValueError(f"{value!r} is none of {', '.join(kind.__name__ for kind in kinds)}")
    return value
