"""Python code that computes attributes which guards read, followed along the way that it takes.

A class may look attributes up under other names, or compute them by a property. Where such code does no more than look up
attributes, compare constants and branch, `follow` takes the way that the code takes, and notes a fact for each thing that it
reads. As long as the facts hold, the code gives the same value, and need not run.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polytile.compiler.guard_attributes import Facts

NOWHERE = object()
"""The value of a key that a dictionary lacks, and of an attribute that a class lacks."""

PLAIN = (int, float, complex, str, bytes, bool, type(None), types.CodeType)
"""Types of values that lead to no others."""

PARTS = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount")
"""What makes code objects do the same, besides their constants."""

BUILTINS = {each.__name__: each for each in (all, any, getattr, len, super)}
"""Python's own functions that followed code may call."""

FUTURE = functools.reduce(lambda flags, name: flags | getattr(__future__, name).compiler_flag, __future__.all_feature_names, 0)
"""Flags of code for which a `from __future__ import` was in force."""


class Unknown(Exception):
    """Something is read that facts cannot tell."""


class _Missing(Exception):
    """The code raises AttributeError."""


def follow(facts: Facts, function: types.FunctionType, given: tuple[Any, ...]) -> Any:
    """What a function returns for these arguments; NOWHERE if it raises AttributeError. Raises Unknown if it does more than can
    be followed."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    if len(names) != len(given) or function.__code__.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        raise Unknown(f"calls of {function.__qualname__}")
    body = _body(facts.pointer(function, "__code__"))
    if not body:
        raise Unknown(f"the source of {function.__qualname__}")
    try:
        return _Way(facts, function, dict(zip(names, given, strict=True))).block(body)[1]
    except _Missing:
        return NOWHERE


@functools.lru_cache(256)
def _body(code: types.CodeType) -> tuple[ast.stmt, ...]:
    """The statements of a function's source; none if there is no source, or if its code is not what the source compiles to."""
    try:
        return _parsed(code, inspect.getsource(code))
    except (OSError, SyntaxError, TypeError):
        return ()


def _parsed(code: types.CodeType, source: str) -> tuple[ast.stmt, ...]:
    text = "class Followed:\n" + source if source[:1].isspace() else source
    made = compile(text, "", "exec", code.co_flags & FUTURE, dont_inherit=True)
    if not any(_do_the_same(each, code) for each in _codes_in(made)):
        return ()
    definition = ast.parse(textwrap.dedent(source)).body[0]
    return tuple(definition.body) if isinstance(definition, ast.FunctionDef) else ()


def _do_the_same(one: types.CodeType, other: types.CodeType) -> bool:
    if len(one.co_consts) != len(other.co_consts) or any(getattr(one, part) != getattr(other, part) for part in PARTS):
        return False
    return all(map(_is_same_constant, one.co_consts, other.co_consts))


def _is_same_constant(one: Any, other: Any) -> bool:
    if isinstance(one, types.CodeType) and isinstance(other, types.CodeType):  # of a comprehension
        return _do_the_same(one, other)
    return type(one) is type(other) and repr(one) == repr(other)  # 1 is not 1.0


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield each
            yield from _codes_in(each)


class _Way:
    """The way that a function takes, with its variables."""

    def __init__(self, facts: Facts, function: types.FunctionType, variables: dict[str, Any]) -> None:
        self._facts, self._function, self._variables = facts, function, variables
        self._self = next(iter(variables.values()))

    def block(self, body: tuple[ast.stmt, ...] | list[ast.stmt]) -> tuple[bool, Any]:
        """Whether a block returns, and what."""
        for each in body:
            if isinstance(each, ast.Return) and each.value is not None:
                return True, self._value(each.value)
            if isinstance(each, ast.If):
                returns, value = self.block(each.body if self._truth(each.test) else each.orelse)
                if returns:
                    return True, value
            elif isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name):
                self._variables[each.targets[0].id] = self._value(each.value)
            elif not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)):
                raise Unknown(ast.unparse(each))
        return False, None

    def _truth(self, node: ast.expr) -> bool:
        return self._is_true(self._value(node))

    def _is_true(self, value: Any) -> bool:
        if type(value) not in PLAIN:
            raise Unknown(f"whether {type(value)} is true")
        return bool(value)

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in self._variables:
            return self._variables[node.id]
        if isinstance(node, ast.Attribute):
            return self._there(self._facts.attribute(self._value(node.value), node.attr))
        if isinstance(node, ast.Subscript):
            return self._there(self._item(self._value(node.value), self._value(node.slice)))
        if isinstance(node, ast.Call) and not node.keywords and len(node.args) == 1 and isinstance(node.func, ast.Attribute):
            return self._call(node.func, self._value(node.args[0]))
        if isinstance(node, ast.Call) and not node.keywords and isinstance(node.func, ast.Name):
            return self._call_builtin(node.func.id, node.args)
        if isinstance(node, ast.ListComp):
            return self._facts.note_temporary(list(self._elements(node)))
        if isinstance(node, ast.BoolOp):
            return self._first(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self._truth(node.operand)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node.ops[0], self._value(node.left), self._value(node.comparators[0]))
        raise Unknown(ast.unparse(node))

    def _first(self, node: ast.BoolOp) -> Any:
        """The first operand that decides, or the last one."""
        value = None
        for each in node.values:
            value = self._value(each)
            if self._is_true(value) is isinstance(node.op, ast.Or):
                break
        return value

    def _compared(self, by: ast.cmpop, left: Any, right: Any) -> bool:
        if isinstance(by, (ast.Is, ast.IsNot)):
            return (left is right) is isinstance(by, ast.Is)
        if isinstance(by, (ast.In, ast.NotIn)):
            return (self._item(right, left) is not NOWHERE) is isinstance(by, ast.In)
        if isinstance(by, (ast.Eq, ast.NotEq)) and type(left) in PLAIN and type(right) in PLAIN:
            return (left == right) is isinstance(by, ast.Eq)
        raise Unknown(type(by).__name__)

    def _item(self, value: Any, key: Any) -> Any:
        if type(value) is not dict:
            raise Unknown(f"an item of {type(value)}")
        self._facts.type_of(value)
        entry = self._facts.item(value, key)
        if entry is not NOWHERE:
            self._facts.type_of(entry)
        return entry

    def _call(self, function: ast.Attribute, argument: Any) -> Any:
        """super().__getattribute__(argument), or the method `get` of a dictionary."""
        if ast.unparse(function) == "super().__getattribute__" and isinstance(argument, str) and self._self is not NOWHERE:
            return self._there(self._facts.attribute_after(self._self, self._own_class(), argument))
        if function.attr == "get":
            entry = self._item(self._value(function.value), argument)
            return None if entry is NOWHERE else entry
        raise Unknown(ast.unparse(function))

    def _own_class(self) -> Any:
        """The class that `super()` comes after."""
        self._see_builtin("super")
        cells = dict(zip(self._function.__code__.co_freevars, self._function.__closure__ or (), strict=True))
        return self._facts.pointer(cells["__class__"], "cell_contents")

    def _call_builtin(self, name: str, arguments: list[ast.expr]) -> Any:
        """getattr(object, name, default), len(sequence), and all() and any() of a comprehension, as far as they go."""
        self._see_builtin(name)
        match name, arguments:
            case "getattr", [of, ast.Constant(value=str(attribute)), default]:
                owner, otherwise = self._value(of), self._value(default)
                attribute_value = self._facts.attribute_or_nothing(owner, attribute)
                return otherwise if attribute_value is NOWHERE else self._there(attribute_value)
            case "len", [of]:
                return len(self._sequence(self._value(of)))
            case "all" | "any", [ast.GeneratorExp() as each]:
                return (all if name == "all" else any)(map(self._is_true, self._elements(each)))
        raise Unknown(name)

    def _see_builtin(self, name: str) -> None:
        """Notes that a name is that of Python's own function."""
        function: Any = self._function
        scopes = function.__globals__, function.__builtins__
        if name in self._variables or name not in BUILTINS:
            raise Unknown(name)
        for scope, wanted in zip(scopes, (NOWHERE, BUILTINS[name]), strict=True):
            if self._facts.item(scope, name) is not wanted:
                raise Unknown(name)

    def _sequence(self, value: Any) -> list[Any] | tuple[Any, ...]:
        if type(value) not in (list, tuple):
            raise Unknown(f"the elements of {type(value)}")
        self._facts.type_of(value)
        self._facts.length(value)
        return value

    def _elements(self, node: ast.ListComp | ast.GeneratorExp) -> Iterator[Any]:
        """What a comprehension gives for each element of one list or tuple."""
        loop = node.generators[0]
        if len(node.generators) > 1 or loop.ifs or loop.is_async or not isinstance(loop.target, ast.Name):
            raise Unknown(ast.unparse(node))
        for each in self._sequence(self._value(loop.iter)):
            self._facts.type_of(each)
            inside = _Way(self._facts, self._function, self._variables | {loop.target.id: each})
            inside._self = NOWHERE  # which `super()` does not find there
            yield inside._value(node.elt)

    def _there(self, value: Any) -> Any:
        if value is NOWHERE:
            raise _Missing
        if type(value) in PLAIN:  # of which the code may compare the contents: no other value may get its address
            self._facts.constant(value)
        return value
