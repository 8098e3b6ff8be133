"""What a Triton kernel does with its parameters, read from its source: which pointers it loads from and stores to, and which
integers bound its loops and masks.

TTIR would need argument types and a compiler, which are missing under Triton's interpreter and before the first call. Parameters
flow through assignments in any order; values loaded from memory are not pointers. Calls of other Triton functions are followed. A
pointer passed to a function whose source cannot be read counts as loaded from and stored to.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

READS = frozenset({"load", "gather", "descriptor_load", "descriptor_gather"})
WRITES = frozenset({"store", "scatter", "descriptor_store", "descriptor_scatter"})
ATOMICS = ("atomic_",)
"""READS, WRITES and ATOMICS name functions of `triton.language`, and methods of a tensor descriptor, by what they do with their
first argument, or with the descriptor."""

LOOPS = frozenset({"range", "static_range"})


@dataclass(frozen=True)
class Effects:
    """Names of a kernel's parameters, by how they are used. If `known` is false, the other fields are empty.

    Attributes
    ----------
    loops, masks
        Parameters from which loop bounds and comparisons are computed.
    numbers
        These, and parameters that are multiplied or divided, which pointers are not.
    stores
        The line in the source file of the first store to each pointer.
    """

    known: bool
    params: tuple[str, ...] = ()
    constexprs: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()
    added: frozenset[str] = frozenset()
    loops: frozenset[str] = frozenset()
    masks: frozenset[str] = frozenset()
    numbers: frozenset[str] = frozenset()
    stores: Mapping[str, int] = field(default_factory=dict)

    @property
    def constants(self) -> tuple[str, ...]:
        """The parameters that are compile-time constants, in order."""
        return tuple(name for name in self.params if name in self.constexprs)

    @property
    def pointers(self) -> frozenset[str]:
        return (self.read | self.written) - self.constexprs - self.numbers

    def role(self, name: str) -> str:
        """The role of a tensor argument (dispatch/spec.py); "inout" if unknown."""
        if not self.known or name in self.read & self.written:
            return "inout"
        return "out" if name in self.written else "in"


UNKNOWN = Effects(False)


def effects_of(function: Callable[..., Any]) -> Effects:
    """The effects of the Python function below `triton.jit`; UNKNOWN if its source cannot be read."""
    return _effects_of(function, ())


def _effects_of(function: Callable[..., Any], within: tuple[Callable[..., Any], ...]) -> Effects:
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    except (OSError, TypeError, SyntaxError, AttributeError):
        return UNKNOWN
    definition = next((node for node in tree.body if isinstance(node, ast.FunctionDef)), None)
    return UNKNOWN if definition is None else Reader(definition, names, (*within, function), first).effects()


class Reader:
    """Reads one function. `flows` maps each local name to the parameters from which its value is computed, except through
    memory."""

    def __init__(
        self, definition: ast.FunctionDef, names: Mapping[str, Any], within: tuple[Callable[..., Any], ...] = (), line: int = 1
    ) -> None:
        self.definition, self.names, self.within, self.line = definition, names, within, line
        given = definition.args
        self.params = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        self.flows: dict[str, frozenset[str]] = {arg.arg: frozenset({arg.arg}) for arg in self.params}
        self.read, self.written, self.added = set[str](), set[str](), set[str]()
        self.loops, self.masks, self.numbers = set[str](), set[str](), set[str]()
        self.stores: dict[str, int] = {}

    def effects(self) -> Effects:
        while self._assign():
            pass
        for node in ast.walk(self.definition):
            if isinstance(node, ast.Call):
                self._called(node)
            elif isinstance(node, ast.Compare) and not any(isinstance(how, ast.Is | ast.IsNot) for how in node.ops):
                self.masks |= self._flow(node)
            elif isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add | ast.Sub):
                self.numbers |= self._flow(node)
            elif isinstance(node, ast.While):
                self.loops |= self._flow(node.test)
        constexprs = frozenset(arg.arg for arg in self.params if arg.annotation and "constexpr" in ast.unparse(arg.annotation))
        return Effects(
            True, tuple(arg.arg for arg in self.params), constexprs, frozenset(self.read), frozenset(self.written),
            frozenset(self.added), frozenset(self.loops), frozenset(self.masks),
            frozenset(self.numbers | self.loops | self.masks), self.stores,
        )  # fmt: skip

    def _assign(self) -> bool:
        """Follow every assignment once; return whether any name has gained a parameter."""
        before = dict(self.flows)
        for node in ast.walk(self.definition):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value)
            elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                self._bind(node.target, node.value)
            elif isinstance(node, ast.For):
                self._bind(node.target, node.iter)
        return before != self.flows

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, its in zip(target.elts, value.elts, strict=True):
                self._bind(one, its)
            return
        flow = self._flow(value)
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self.flows[node.id] = self.flows.get(node.id, frozenset()) | flow

    def _flow(self, node: ast.AST) -> frozenset[str]:
        """The parameters from which the value of an expression is computed."""
        if isinstance(node, ast.Name):
            return self.flows.get(node.id, frozenset())
        if isinstance(node, ast.Call) and (self._name_in_triton(node) or _method(node)) in READS:
            return frozenset()
        if isinstance(node, ast.Call) and (self._name_in_triton(node) or _method(node)).startswith(ATOMICS):
            return frozenset()
        if isinstance(node, ast.Attribute) and node.attr in ("dtype", "shape", "type"):
            return frozenset()
        return frozenset().union(*map(self._flow, ast.iter_child_nodes(node)))

    def _called(self, call: ast.Call) -> None:
        name = self._name_in_triton(call)
        method = "" if name else _method(call)
        if (name or method) in LOOPS or (isinstance(call.func, ast.Name) and call.func.id in LOOPS):
            self.loops |= self._given(call)
        elif method:
            assert isinstance(call.func, ast.Attribute)
            self._touch(method, self._flow(call.func.value), call)
        elif name:
            pointer = call.args[:1] or [word.value for word in call.keywords if word.arg in ("pointer", "desc")]
            self._touch(name.removeprefix("_experimental_").removeprefix("experimental_"), self._flow_of(pointer), call)
        else:
            self._follow(call)

    def _touch(self, what: str, pointers: frozenset[str], call: ast.Call) -> None:
        atomic = what.startswith(ATOMICS)
        if what in READS or atomic:
            self.read |= pointers
        if what in WRITES or atomic:
            self.written |= pointers
            self.added |= pointers if atomic else set()
            for name in pointers:
                self.stores.setdefault(name, self.line + call.lineno - 1)
        if what == "inline_asm_elementwise":
            self.read |= self._given(call)
            self.written |= self._given(call)

    def _follow(self, call: ast.Call) -> None:
        """Follow a call of a user's function."""
        helper = self._callee(call.func)
        if helper in (print, float, int, bool, min, max, len, abs, isinstance, tuple, list):
            return
        function = python_function(helper)
        if function in self.within:
            return
        its = UNKNOWN if function is None else _effects_of(function, self.within)
        if not its.known:
            self.read |= self._given(call)
            self.written |= self._given(call)
            return
        by_name = dict(zip(its.params, call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}
        for name, value in by_name.items():
            flow = self._flow(value)
            for mine, theirs in (
                (self.read, its.read), (self.written, its.written), (self.added, its.added), (self.loops, its.loops),
                (self.masks, its.masks), (self.numbers, its.numbers),
            ):  # fmt: skip
                mine |= flow if name in theirs else set()
            for pointer in flow if name in its.written else ():
                self.stores.setdefault(pointer, self.line + call.lineno - 1)

    def _given(self, call: ast.Call) -> frozenset[str]:
        return self._flow_of([*call.args, *(word.value for word in call.keywords)])

    def _flow_of(self, nodes: list[ast.expr]) -> frozenset[str]:
        return frozenset[str]().union(*map(self._flow, nodes))

    def _callee(self, node: ast.expr) -> Any:
        """The object that an expression in function position refers to in the function's module; None if unknown."""
        if isinstance(node, ast.Name):
            built_in = self.names.get("__builtins__", {})
            return self.names.get(node.id, (built_in if isinstance(built_in, dict) else vars(built_in)).get(node.id))
        if isinstance(node, ast.Attribute):
            return getattr(self._callee(node.value), node.attr, None)
        return None

    def _name_in_triton(self, call: ast.Call) -> str:
        """The name of one of Triton's own functions; "" for any other."""
        if isinstance(call.func, ast.Attribute) and inspect.ismodule(module := self._callee(call.func.value)):
            return call.func.attr if module.__name__.split(".")[0] in ("triton", "tl") else ""
        callee = self._callee(call.func)
        own = getattr(python_function(callee) or callee, "__module__", "") or ""
        return callee.__name__ if own.split(".")[0] == "triton" and hasattr(callee, "__name__") else ""


def _method(call: ast.Call) -> str:
    """The name of a called method; "" if the call is not a method call."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def python_function(kernel: Any) -> Callable[..., Any] | None:
    """The Python function below `triton.jit`, `triton.heuristics` and `autotune`; None if there is none."""
    while kernel is not None and not inspect.isfunction(kernel):
        kernel = getattr(kernel, "fn", None)
    return kernel


def innermost(kernel: Any) -> Any:
    """The JITFunction below heuristics and autotuners."""
    while python_function(getattr(kernel, "fn", None)) is not None and not inspect.isfunction(kernel.fn):
        kernel = kernel.fn
    return kernel
