"""What Dynamo's guards of a compiled code read besides the arguments of a call, so that C can tell whether it has changed.

A tree of guards goes from the function's globals, closure and module through attributes and items to values, and compares these.
`Reads` goes the same way and notes a *fact* for each step: what a dictionary has under a key, what type an object has, what
a function's code is. As long as all facts hold, the guards read the same objects, and answer as before. The launcher compares
facts in less time, as one version stands for all items of a dictionary (runtime/guard_facts.c).

This holds because of what guards compare. A value that is compared by its contents is immutable (`_is_constant`), or its
contents are facts themselves. Of an attribute that Python code computes, what the code reads is a fact (guard_code.py). Of the
arguments, guards read what a signature keeps: the metadata of tensors, and numbers, strings and None. Where guards do anything
else, or torch has a kind of guard that is not known here, there is no memo, and the guards are evaluated.

Python 3.13 has no versions of dictionaries. Nothing is noted there.
"""

from __future__ import annotations

import ast
import enum
import functools
import itertools
import logging
import re
import time
import types
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import torch
from torch._C._dynamo import guards as dynamo

from polytile.compiler.guard_attributes import TENSORS, Facts, described
from polytile.compiler.guard_code import Unknown

log = logging.getLogger("polytile")

ARGUMENT = object()
"""What stands for an argument of a call, or something in one."""

ARGUMENTS = object()
"""What stands for the tuple of all positional arguments of a forward that does not name its module, which comes first."""

END = object()

PART = 100e-6
"""Seconds of work that a part of a memo takes in a call. A step takes 20 to 50 µs."""

OF_ARGUMENTS = (
    "TYPE_MATCH", "TENSOR_MATCH", "LENGTH_CHECK", "NO_HASATTR", "DIMENSION_DYNAMIC_MARKING_GUARD", "EQUALS_MATCH", "NONE_MATCH",
    "TRUE_MATCH", "FALSE_MATCH", "NOT_NONE", "NO_TENSOR_ALIASING", "DICT_CONTAINS", "DICT_LENGTH",
)  # fmt: skip
"""Guards whose answers depend on an argument's type, metadata or value alone. A signature has tensors without attributes of
their own, no two of them the same."""

ITEMS_OF_ARGUMENTS = ("TupleGetItemGuardAccessor", "DictGetItemGuardAccessor", "GetItemGuardAccessor")
SIZES_OF_ARGUMENTS = ("size", "stride", "storage_offset", "dim")
"""Methods of tensors that guards on sizes call."""

LACKS = r"(?:not )?hasattr\(.*?, ['\"](\w+)['\"]\)(?: == False)?\s*(?:#.*)?"
"""How guards are written that an object has no attribute of a name."""

HOOKS_OF_SAVED_TENSORS = "torch._functorch.aot_autograd.utils.top_saved_tensors_hooks ids == None"


class Making:
    """A memo in the making, for the guards of a code that Dynamo compiled for `function`, the forward of `module` if that is not
    None. `loaded` is the launcher, and `root` the root of the tree of guards. Each call makes a part, so that a call of the model
    that has a part made takes hardly longer. What changes in between is noticed in the end, when all facts are compared."""

    def __init__(self, loaded: Any, root: Any, function: types.FunctionType, module: Any) -> None:
        self.memo, self.done = None, False
        """The memo, once it is made. None if the guards read something else than facts can tell, or differ from what is known of
        torch here."""
        self.function = function
        self._facts: tuple[str, ...] = ()
        self._parts: Any = self._make(loaded, root, function, module)

    def __call__(self) -> Any:
        """Returns the memo, and this object itself as long as there is more to make."""
        if not self.done and not self._parts.gi_running:  # in another thread
            try:
                self.done = next(self._parts, END) is END
            except Exception as why:  # Unknown, or whatever a class of the user's raises when it is looked at: it has no memo
                self.done = True
                log.debug("guards of %s are evaluated in each call: %s", self.function.__qualname__, why)
        return self.memo if self.done else self

    def report(self) -> None:
        """Logs that the memo is of no use, and what was found to differ last."""
        if self._facts and self.memo is not None:
            which = (*self._facts, "metadata of parameters", "modes of torch", "nothing")[self.memo.stopped]
            log.debug("what guards of %s read differs in call after call: %s", self.function.__qualname__, which)

    def _make(self, loaded: Any, root: Any, function: types.FunctionType, module: Any) -> Generator[None]:
        """Yields after each part but the last. In the end nothing is kept alive."""
        until = time.thread_time() + PART
        reads, facts = Reads(Facts(loaded.type_version), function, module), list[tuple[Any, ...]]()
        reads.tree(root)
        for step in itertools.chain(reads.steps(), map(facts.append, reads.facts.in_order())):
            if time.thread_time() > until:
                yield step
                until = time.thread_time() + PART
        owned = reads.facts.owned()
        yield
        if log.isEnabledFor(logging.DEBUG):
            self._facts = tuple(map(described, facts))
        self.memo = loaded.Memo(tuple(facts), owned, tuple(reads.tensors.values()), tuple(reads.modes), dynamo.TensorGuards)


class Reads:
    """What a tree of guards reads."""

    def __init__(self, facts: Facts, function: types.FunctionType, module: Any) -> None:
        self.facts, self._function = facts, function
        self.tensors: dict[int, Any] = {}
        """Tensors whose metadata guards compare, by their addresses."""
        self.modes: list[tuple[Callable[[], Any], Any]] = []
        """Functions and what they answer as long as torch is in the mode in which guards hold."""
        self._left: list[Callable[[], Any]] = []
        """Steps that are left: each notes what a node of the tree reads, or an expression."""
        code = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)]
        self._locals: dict[str, Any] = dict.fromkeys(names, ARGUMENT)
        for name in self._changeable_defaults():
            del self._locals[name]
        self._module = module
        if module is not None and code.co_argcount > 0:
            self._locals[names[0]] = module
        elif module is not None:  # forward(*args)
            self._locals[names[code.co_kwonlyargcount]] = ARGUMENTS
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name not in self._locals:
                self._locals[name] = cell

    def _changeable_defaults(self) -> list[str]:
        """The parameters whose default values may change in what guards read of them. A signature has only what is given."""
        function, code = self._function, self._function.__code__
        defaults = self.facts.constant(self.facts.pointer(function, "__defaults__")) or ()
        values = dict(zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True))
        named = self.facts.pointer(function, "__kwdefaults__") or {}
        values |= {name: self.facts.constant(self.facts.item(named, name)) for name in named}
        return [name for name, value in values.items() if not (_is_constant(value) or isinstance(value, FUNCTIONS))]

    def tree(self, root: Any) -> None:
        for tensor in TENSORS:  # which have no attributes that guards say tensors lack
            self.facts.version(tensor)
        for leaf in root.get_leaf_guards():
            self._mode(leaf)
        for accessor, child in zip(root.get_accessors(), root.get_child_managers(), strict=True):
            kind = type(accessor).__name__
            if kind == "GlobalsGuardAccessor":
                self._go_to(child, self._function.__globals__)
            elif kind == "FrameLocalsGuardAccessor":
                self._variable(child, _argument_of(accessor))
            else:
                raise Unknown(kind)
        for leaf in root.get_epilogue_lambda_guards():
            self._expressions(leaf)

    def steps(self) -> Iterator[None]:
        """Takes all steps that are left, one at a time."""
        while self._left:
            self._left.pop()()
            yield

    def _go_to(self, manager: Any, value: Any, versioned: bool = False) -> None:
        self._left.append(functools.partial(self._node, manager, value, versioned))

    def _variable(self, manager: Any, name: str) -> None:
        value = self._local(name)
        if value is ARGUMENT:
            self._argument(manager)
        elif value is ARGUMENTS:
            self._argument(manager, place_of_module=0)
        else:
            self._go_to(manager, value)

    def _local(self, name: str) -> Any:
        value = self._locals[name]
        return self.facts.pointer(value, "cell_contents") if isinstance(value, types.CellType) else value

    def _argument(self, manager: Any, place_of_module: int | None = None) -> None:
        for leaf in manager.get_leaf_guards():
            kind = type(leaf).__name__
            plain = kind == "ID_MATCH" and not issubclass(manager.get_type_of_guarded_value(), torch.Tensor)
            if kind not in OF_ARGUMENTS and not plain:
                raise Unknown(kind)
        for accessor, child in zip(manager.get_accessors(), manager.get_child_managers(), strict=True):
            if type(accessor).__name__ not in ITEMS_OF_ARGUMENTS:
                raise Unknown(type(accessor).__name__)
            if place_of_module is not None and ast.literal_eval(_argument_of(accessor)) == place_of_module:
                self._go_to(child, self._module)
            else:
                self._argument(child)
        if type(manager) is dynamo.DictGuardManager:
            for each in itertools.chain.from_iterable(manager.get_key_value_managers().values()):
                if each is not None:
                    self._argument(each)
        elif type(manager) is not dynamo.GuardManager:
            raise Unknown(type(manager).__name__)

    def _node(self, manager: Any, value: Any, versioned: bool) -> None:
        self.facts.type_of(value, versioned)
        if type(value) in TENSORS:
            self.tensors[id(value)] = value
        for leaf in manager.get_leaf_guards():
            self._leaf(leaf, value)
        if type(manager) is dynamo.DictGuardManager:
            self._keys_and_values(manager, value)
            return
        if type(manager) is not dynamo.GuardManager:
            raise Unknown(type(manager).__name__)
        for accessor, child in zip(manager.get_accessors(), manager.get_child_managers(), strict=True):
            self._go_to(child, self._step(accessor, value), type(accessor).__name__ in VERSIONED)

    def _keys_and_values(self, manager: Any, value: Any) -> None:
        """Notes what guards on a dictionary's keys, by their order, and their values read."""
        keys = self.facts.all_items(value)
        for place, managers in manager.get_key_value_managers().items():
            for each, pair in zip(managers, keys[place], strict=True):
                if each is not None:
                    self._go_to(each, pair, versioned=True)

    def _step(self, accessor: Any, value: Any) -> Any:
        """What an accessor leads to from a value."""
        kind, facts = type(accessor).__name__, self.facts
        if kind in POINTERS:
            return facts.pointer(value, POINTERS[kind])
        if kind == "TypeGuardAccessor":
            return type(value)
        if kind == "TypeDictGuardAccessor":
            facts.version(value)
            return value.__dict__
        if kind == "TypeMROGuardAccessor":
            facts.version(value)
            return value.__mro__
        if kind in ("DictGetItemGuardAccessor", "TupleGetItemGuardAccessor", "ListGetItemGuardAccessor"):
            return facts.item(value, ast.literal_eval(_argument_of(accessor)))
        if kind == "GetItemGuardAccessor":
            return facts.subscript(value, ast.literal_eval(_argument_of(accessor)))
        if kind == "GetAttrGuardAccessor":
            return facts.attribute(value, _argument_of(accessor))
        if kind == "GenericGetAttrGuardAccessor":
            return facts.generic(value, _argument_of(accessor))
        raise Unknown(kind)

    def _leaf(self, leaf: Any, value: Any) -> None:
        """Notes what a guard on a value reads of it."""
        kind, text = type(leaf).__name__, leaf.verbose_code_parts()
        if kind in ("TYPE_MATCH", "ID_MATCH", "NONE_MATCH", "TRUE_MATCH", "FALSE_MATCH", "NOT_NONE", "OBJECT_ALIASING"):
            return
        if kind == "EQUALS_MATCH" and _is_constant(value):
            self.facts.constant(value)
        elif kind in ("TENSOR_MATCH", "NO_TENSOR_ALIASING") and type(value) in TENSORS:
            return
        elif kind in ("LENGTH_CHECK", "DICT_LENGTH"):
            self.facts.length(value)
        elif kind == "DICT_CONTAINS":
            self.facts.item(value, _key_of(text[0]))
        elif kind in ("NO_HASATTR", "DIMENSION_DYNAMIC_MARKING_GUARD"):
            for part in text:
                self.facts.lacks(value, _found(LACKS, part))
        else:
            raise Unknown(kind)

    def _mode(self, leaf: Any) -> None:
        """Notes a guard on one of torch's modes. Each is compared by a function of torch's own."""
        kind, text = type(leaf).__name__, leaf.verbose_code_parts()
        if kind == "GLOBAL_STATE":
            self.modes.append((dynamo.GlobalStateGuard().check, True))
        elif kind == "TORCH_FUNCTION_MODE_STACK" and torch._C._len_torch_function_stack() == 0:
            self.modes.append((torch._C._len_torch_function_stack, 0))
        elif kind == "DEFAULT_DEVICE":
            self.facts.constant(self.facts.item(vars(torch.utils._device), "CURRENT_DEVICE"))
        elif kind == "LAMBDA_GUARD" and len(text) == 1 and text[0].startswith(HOOKS_OF_SAVED_TENSORS):
            if torch._functorch._aot_autograd.utils.top_saved_tensors_hooks() is not None:
                raise Unknown(kind)
            self.modes.append((torch._functorch._aot_autograd.utils.top_saved_tensors_hooks, None))
        elif kind == "LAMBDA_GUARD":
            self._expressions(leaf)
        else:
            raise Unknown(kind)

    # guards that are Python expressions ------------------------------------------------------------------------------

    def _expressions(self, leaf: Any) -> None:
        if type(leaf).__name__ != "LAMBDA_GUARD":
            raise Unknown(type(leaf).__name__)
        self._left += [functools.partial(self._expression, text.strip()) for text in leaf.verbose_code_parts()]

    def _expression(self, text: str) -> None:
        self._value(ast.parse(text, mode="eval").body)

    def _value(self, node: ast.expr) -> Any:
        """What an expression leads to; None for what is computed of such values."""
        if isinstance(node, ast.Constant):
            return None
        if isinstance(node, ast.Name) and node.id == "G":
            return self._function.__globals__
        if isinstance(node, ast.Attribute):
            return self._attribute(self._value(node.value), node.attr, self.facts.attribute)
        if isinstance(node, ast.Subscript):
            return self._item(node)
        if isinstance(node, ast.Call) and not node.keywords:
            lookup = LOOKUPS.get(ast.unparse(node.func))
            return self._call(node) if lookup is None else lookup(self, *node.args)
        if isinstance(node, (ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp)):
            self._computed(node)
        else:
            raise Unknown(ast.unparse(node))
        return None

    def _attribute(self, value: Any, name: str, read: Callable[[Any, str], Any]) -> Any:
        if value is ARGUMENT or value is ARGUMENTS:
            raise Unknown(name)
        return read(value, name)

    def _type(self, of: ast.expr) -> Any:
        """type(object)"""
        value = self._value(of)
        if value is ARGUMENT or value is ARGUMENTS:
            raise Unknown(ast.unparse(of))
        self.facts.type_of(value)
        return type(value)

    def _generic(self, of: ast.expr, name: ast.expr) -> Any:
        """object.__getattribute__(object, name)"""
        return self._attribute(self._value(of), ast.literal_eval(name), self.facts.generic)

    def _item_of_dictionary(self, of: ast.expr, key: ast.expr) -> Any:
        """dict.__getitem__(dictionary, key), whatever its class has"""
        place = _place_of_key(key)
        named = self._key(*place) if place else ast.literal_eval(key)
        return self.facts.item(self._value(of), named)

    def _key(self, of: ast.expr, place: int) -> Any:
        """list(dict.keys(dictionary))[place]"""
        return self.facts.all_items(self._value(of))[place][0]

    def _item(self, node: ast.Subscript) -> Any:
        place = _place_of_key(node)
        if place:
            return self._key(*place)
        key = ast.literal_eval(node.slice)
        if isinstance(node.value, ast.Name) and node.value.id == "L":
            return self._local(key)
        value = self._value(node.value)
        if value is ARGUMENTS:
            return self._module if key == 0 else ARGUMENT
        return value if value is ARGUMENT or value is None else self.facts.subscript(value, key)

    def _call(self, node: ast.Call) -> None:
        """A method of a tensor that tells its sizes, a function of the module math, or a number by way of a tensor."""
        called = node.func
        if isinstance(called, ast.Name) and called.id == "___as_tensor":
            self._operand(node.args[0])
            return
        if not isinstance(called, ast.Attribute):
            raise Unknown(ast.unparse(node))
        of_math = isinstance(called.value, ast.Name) and called.value.id == "math"
        of_number = called.attr == "item" and ast.unparse(called.value).startswith("___as_tensor(")
        if of_number:
            self._operand(called.value)
        elif not of_math and (called.attr not in SIZES_OF_ARGUMENTS or self._value(called.value) is not ARGUMENT):
            raise Unknown(ast.unparse(node))
        for each in node.args:
            self._operand(each)

    def _computed(self, node: ast.expr) -> None:
        if isinstance(node, ast.Compare) and any(isinstance(each, (ast.Is, ast.IsNot)) for each in node.ops):
            values = [self._value(each) for each in (node.left, *node.comparators)]
            if any(value is ARGUMENT or value is ARGUMENTS for value in values):
                raise Unknown(ast.unparse(node))
            return
        for each in ast.iter_child_nodes(node):
            if isinstance(each, ast.expr):
                self._operand(each)

    def _operand(self, node: ast.expr) -> None:
        value = self._value(node)
        if value is not None and value is not ARGUMENT:
            if not _is_constant(value):
                raise Unknown(ast.unparse(node))
            self.facts.constant(value)


POINTERS: Mapping[str, str] = {
    "GetGenericDictGuardAccessor": "__dict__",
    "CodeGuardAccessor": "__code__",
    "ClosureGuardAccessor": "__closure__",
    "FuncDefaultsGuardAccessor": "__defaults__",
    "FuncKwDefaultsGuardAccessor": "__kwdefaults__",
}
"""Accessors that follow a pointer, and its name in Python."""

LOOKUPS: Mapping[str, Callable[..., Any]] = {
    "type": Reads._type,
    "object.__getattribute__": Reads._generic,
    "dict.__getitem__": Reads._item_of_dictionary,
}
"""What looks something up in expressions, by the function that is called."""

VERSIONED = ("DictGetItemGuardAccessor",)
"""Accessors to what has a version: that of the dictionary which it is in."""

CONSTANTS = (
    int, float, complex, str, bytes, bool, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.Size,
)  # fmt: skip
"""Types of values that never change."""

FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
"""Types of default values of which guards on arguments read no more than which ones they are."""


def _is_constant(value: Any) -> bool:
    """Whether a comparison of contents with the value always gives the same."""
    if type(value) in (tuple, frozenset):
        return all(map(_is_constant, value))
    by_identity = isinstance(value, enum.Enum) and type(value).__eq__ is object.__eq__
    return type(value) in CONSTANTS or type(value) is type or by_identity or isinstance(value, types.CodeType)


def _argument_of(accessor: Any) -> str:
    """The key, index or name of an accessor, as text."""
    text = accessor.repr()
    named = re.fullmatch(r"FrameLocalsGuardAccessor\(key='(\w+)', framelocals_idx=\d+\)", text)
    return named[1] if named else _found(r"\w+\((.*)\)", text)


def _place_of_key(node: ast.expr) -> tuple[ast.expr, int] | None:
    """The dictionary and the place of `list(dict.keys(dictionary))[place]`; None if the expression is another one."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Call):
        return None
    keys = node.value.args[0] if ast.unparse(node.value.func) == "list" and len(node.value.args) == 1 else None
    if not isinstance(keys, ast.Call) or ast.unparse(keys.func) != "dict.keys" or len(keys.args) != 1:
        return None
    return keys.args[0], int(ast.literal_eval(node.slice))


def _key_of(text: str) -> Any:
    """The key of a guard on whether a dictionary has it: `___dict_contains(key, dictionary)`."""
    node = ast.parse(text.strip(), mode="eval").body
    called = node.operand if isinstance(node, ast.UnaryOp) else node
    if not isinstance(called, ast.Call) or not called.args:
        raise Unknown(text)
    return ast.literal_eval(called.args[0])


def _found(pattern: str, text: str) -> str:
    """What the group of a pattern finds in a guard's text."""
    match = re.fullmatch(pattern, text)
    if match is None:
        raise Unknown(text)
    return match[1]
