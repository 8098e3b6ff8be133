"""Facts about objects that guards read: what was found where, in the order in which it is found again.

An attribute is a fact about one place where Python's own rules find it: the object's dictionary, or its class. Code that
computes attributes, such as that of a property, is followed (guard_code.py); where it cannot be, there is no memo. So no Python
code runs between two facts, which hold at one moment, and nothing that is read changes what is read elsewhere. Of what C code
computes, such as a slot or a function's name, the fact is the value, which the launcher reads anew each time.
"""

from __future__ import annotations

import collections
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from polytile.compiler.guard_code import NOWHERE, PLAIN, Unknown, follow

TYPE, VERSION, POINTER, ITEMS, ALL_ITEMS, ELEMENTS, ATTRIBUTE = range(7)
"""The kinds of facts of runtime/guard_facts.c."""

KINDS = ("type", "version", "pointer", "items", "all items", "elements", "attribute")
"""What they are called in messages."""

PYTHONS_OWN = tuple(
    vars(kind)["__getattribute__"] for kind in (object, types.ModuleType, types.SimpleNamespace, functools.partial)
)
"""Methods by which objects' attributes are found in their dictionaries and classes."""

MRO, FLAGS = vars(type)["__mro__"], vars(type)["__flags__"]
"""The getters of a class's method resolution order and flags, whatever its metaclass has."""

HEAP = 1 << 9
"""The flag of types whose objects may get another type."""

TENSORS = (torch.Tensor, torch.nn.Parameter)
"""The types of tensors whose metadata are compared."""

MEMBERS = ("_parameters", "_buffers", "_modules")
"""The dictionaries in which `torch.nn.Module.__getattr__` looks for an attribute."""

ACCESSORS = ("fget", "fset", "fdel")
"""Attributes of properties that are pointers."""

FOLLOWED = ("__code__", "__closure__", "__defaults__", "__kwdefaults__")
"""Attributes of functions that are pointers."""

IN_C = (types.MemberDescriptorType, types.GetSetDescriptorType)
"""Types of attributes of a class that compute those of an object in C."""

GETTERS = [
    vars(kind)[name]
    for kind, names in (
        (type, ("__name__", "__qualname__", "__module__")),
        (types.FunctionType, ("__name__", "__qualname__")),
        (types.BuiltinFunctionType, ("__name__",)),
        (torch.device, ("type", "index")),
        (torch.dtype, ("is_floating_point", "is_complex", "itemsize")),
    )
    for name in names
]
"""Getters in C that run no Python code. Others may: those of tensors call `__torch_function__`, those of extensions
whatever they like. A member's value lies in the object, and is taken from there."""

THEMSELVES = (types.FunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)
"""Types of attributes of a class that are read of the class as they are."""


KEYS = (str, int)
"""Types of keys, which C code compares."""

SUBSCRIPTED = (dict, collections.OrderedDict, tuple, list, types.MappingProxyType)
"""Types of containers of which `value[key]` does no more than look up."""


class Facts:
    """Facts, each noted once. `version_of` gives the version of a type, 0 if it has none. Methods raise Unknown where a value is
    found in a way that no fact can tell."""

    def __init__(self, version_of: Callable[[type], int]) -> None:
        self._version_of = version_of
        self._facts: dict[tuple[Any, ...], list[Any]] = {}
        """(kind, object, expected, name, version, length) by the kind, the object's address and the name."""
        self._classes: dict[tuple[type, int], tuple[Any, ...]] = {}
        self._constants: list[Any] = []
        self._made: dict[int, Any] = {}
        """Bound methods and lists of comprehensions, by their addresses. Each access makes them, of what facts are about."""
        if sys.version_info < (3, 11):  # where sys._clear_type_cache() has versions of types come back, though not of this one
            self.version(self.constant(type("Cleared", (), {})))

    def in_order(self) -> Iterator[tuple[Any, ...]]:
        """The facts as the launcher takes them: those that make objects come last."""
        for fact in sorted(self._facts.values(), key=lambda fact: fact[0] == ATTRIBUTE):
            if fact[0] in (ITEMS, ALL_ITEMS):
                fact[2] = tuple(part for key, each in fact[2].items() for part in (key, 0 if each is NOWHERE else id(each)))
            yield tuple(fact)

    def owned(self) -> list[Any]:
        """What the launcher owns: tuples and names of facts, and constants. Called after `in_order`."""
        parts = [part for fact in self._facts.values() for part in fact[2:4]]
        computed = [fact[1] for fact in self._facts.values() if fact[0] == ATTRIBUTE]
        return [*parts, *computed, *self._constants]

    def constant(self, value: Any) -> Any:
        """Has the launcher own a value, so that no other one gets its address."""
        self._constants.append(value)
        return value

    def type_of(self, value: Any, versioned: bool = False) -> None:
        """Notes an object's type. If it is `versioned`, what leads to it has a version: as long as that is the same, so is the
        object, and its type need not be looked at if objects keep that, or if the metadata of tensors are compared."""
        kind = type(value)
        if kind in PLAIN:
            self.constant(value)
        elif kind is not types.MappingProxyType:  # a type's, made at each access
            keeps = not kind.__flags__ & HEAP and not isinstance(value, types.ModuleType)
            seldom = versioned and (keeps or kind in TENSORS)
            self._note(TYPE, value, id(kind), version=int(seldom))

    def version(self, kind: type) -> None:
        """Notes that a type has not changed, nor any of its bases."""
        getattr(kind, "__init__", None)  # gives it a version, if it has none
        version = self._version_of(kind)
        if not version:
            raise Unknown(f"{kind} has no version")
        order: tuple[type, ...] = MRO.__get__(kind)
        attributes = (self._attributes(each) for each in order if FLAGS.__get__(each) & HEAP)
        self._note(VERSION, kind, (order, *attributes), version=version)

    def _attributes(self, kind: type) -> tuple[Any, ...]:
        """All that a class itself has, as (name, value, ...). The launcher owns it, and compares it after a change of a class.
        Then it looks a name up in the class, where no name may compare by Python code."""
        key = kind, self._version_of(kind)
        if key not in self._classes:
            if not all(type(name) is str for name in vars(kind)):
                raise Unknown(f"names in {kind} that are no strings")
            self._classes[key] = tuple(part for item in vars(kind).items() for part in item)
        return self._classes[key]

    def pointer(self, value: Any, name: str) -> Any:
        """What the attribute of this name, which is a pointer in the object, leads to."""
        if id(value) in self._made:
            raise Unknown(f"{name} of what is made at each access")
        if name in FOLLOWED and not isinstance(value, types.FunctionType):
            raise Unknown(f"{name} of {type(value)}")
        if name == "__dict__" and isinstance(value, type):
            raise Unknown("the dictionary of a type")
        target = value.cell_contents if name == "cell_contents" else object.__getattribute__(value, name)
        self._note(POINTER, value, 0 if target is None and name != "cell_contents" else id(target), name)
        if type(target) in PLAIN:
            self.constant(target)
        return target

    def item(self, value: Any, key: Any) -> Any:
        """What a dictionary, tuple or list has under a key; NOWHERE if a dictionary lacks it."""
        if isinstance(value, types.MappingProxyType):  # of a type, whose version is noted
            return value.get(key, NOWHERE)
        if type(value) in (tuple, list):
            self.length(value)
            return value[key]
        if not isinstance(value, dict) or type(key) not in KEYS:
            raise Unknown(f"an item of {type(value)}")
        entry = dict.get(value, key, NOWHERE)
        self._items(value)[key] = entry
        return entry

    def subscript(self, value: Any, key: Any) -> Any:
        """What Python code gets by `value[key]`."""
        if type(value) not in SUBSCRIPTED:
            raise Unknown(f"an item of {type(value)}")
        self.type_of(value)
        entry = self.item(value, key)
        if entry is NOWHERE:
            raise Unknown(f"an item that {type(value)} lacks")
        return entry

    def length(self, value: Any) -> None:
        if type(value) in (tuple, list):
            self._note(ELEMENTS, value, tuple(map(id, value)))
        elif isinstance(value, dict) and type(value).__len__ is dict.__len__:
            self._items(value)
            self._facts[ITEMS, id(value), ""][5] = len(value)
        elif not isinstance(value, types.MappingProxyType):
            raise Unknown(f"the length of {type(value)}")

    def all_items(self, value: Any) -> list[tuple[Any, Any]]:
        """A dictionary's items in order, with the fact that it has these and no others."""
        if not isinstance(value, dict) or not all(type(key) in KEYS for key in dict.keys(value)):
            raise Unknown(f"the keys of {type(value)}")
        items = list(dict.items(value))
        self._note(ALL_ITEMS, value, dict(items))
        return items

    def lacks(self, value: Any, name: str) -> None:
        """Notes that an object has no attribute of this name."""
        if id(value) in self._made:
            raise Unknown(f"whether what is made at each access has {name}")
        if self._by_rules(value, name) is not NOWHERE:
            raise Unknown(f"{value} has {name}")

    def note_temporary(self, value: Any) -> Any:
        """Takes note of an object that is made anew at each access. What it consists of is in facts."""
        self._made[id(value)] = value
        return value

    def attribute_or_nothing(self, value: Any, name: str) -> Any:
        """An object's attribute; NOWHERE if it has none."""
        return self.attribute(value, name) if id(value) in self._made else self._by_rules(value, name)

    def attribute(self, value: Any, name: str) -> Any:
        """An object's attribute."""
        if id(value) in self._made:
            if name not in ("__func__", "__self__"):
                raise Unknown(f"{name} of what is made at each access")
            return getattr(value, name)
        if isinstance(value, types.CellType) or (isinstance(value, types.FunctionType) and name in FOLLOWED):
            return self.pointer(value, name)
        if type(value) is property and name in ACCESSORS:
            return self.pointer(value, name)
        result = self._attribute_of_type(value, name) if isinstance(value, type) else self._by_rules(value, name)
        if result is NOWHERE:
            raise Unknown(f"{name} of {type(value)}")
        return result

    def attribute_after(self, value: Any, owner: type, name: str) -> Any:
        """What `super().__getattribute__(name)` gives in a method of `owner`; NOWHERE if it raises AttributeError."""
        kinds = type(value).__mro__
        return self._by_class(value, name, kinds[kinds.index(owner) + 1 :])

    def _by_rules(self, value: Any, name: str) -> Any:
        """An object's attribute by Python's rules; NOWHERE if there is none. Raises Unknown if there are others."""
        kind = type(value)
        if isinstance(value, type):
            raise Unknown(f"whether {value} has {name}")
        self.type_of(value)
        self.version(kind)
        result = self._by_class(value, name, kind.__mro__)
        if result is NOWHERE and isinstance(value, types.ModuleType) and self.item(vars(value), "__getattr__") is not NOWHERE:
            raise Unknown(f"attributes of {value}")
        if result is not NOWHERE or not hasattr(kind, "__getattr__"):
            return result
        if kind.__getattr__ is not torch.nn.Module.__getattr__:
            raise Unknown(f"attributes of {kind}")
        self.pointer(kind.__getattr__, "__code__")
        for members in MEMBERS:
            every = self.item(self.pointer(value, "__dict__"), members)
            if type(every) not in SUBSCRIPTED:
                raise Unknown(f"items of {type(every)}")
            self.type_of(every)
            result = self.item(every, name) if result is NOWHERE else result
        return result

    def _by_class(self, value: Any, name: str, kinds: tuple[type, ...]) -> Any:
        """What the first `__getattribute__` in these classes gives; NOWHERE if it raises AttributeError."""
        rule = next(vars(each)["__getattribute__"] for each in kinds if "__getattribute__" in vars(each))
        if isinstance(rule, types.FunctionType):
            return follow(self, rule, (value, name))
        if rule not in PYTHONS_OWN:
            raise Unknown(f"attributes of {type(value)}")
        return self._plainly(value, name)

    def generic(self, value: Any, name: str) -> Any:
        """An object's attribute by `object.__getattribute__`, whatever its class has."""
        self.type_of(value)
        self.version(type(value))
        result = NOWHERE if isinstance(value, type) else self._plainly(value, name)
        if result is NOWHERE:
            raise Unknown(f"{name} of {type(value)}")
        return result

    def _plainly(self, value: Any, name: str) -> Any:
        of_class = self._of_class(type(value), name)
        if name == "__class__" and of_class is vars(object)[name]:
            return type(value)
        if name == "__dict__":
            return self.pointer(value, name)
        if type(of_class) is property and isinstance(of_class.fget, types.FunctionType):
            return follow(self, self._getter(of_class), (value,))
        if type(of_class) in IN_C:
            return self._read(of_class, value, name)
        if _is_data_descriptor(of_class):
            raise Unknown(f"{name} of {type(value)}")
        own = self.item(self.pointer(value, "__dict__"), name) if hasattr(value, "__dict__") else NOWHERE
        if own is NOWHERE and isinstance(of_class, types.FunctionType):
            return self.note_temporary(types.MethodType(of_class, value))
        if own is NOWHERE and hasattr(type(of_class), "__get__"):
            raise Unknown(f"{name} of {type(value)}")
        return of_class if own is NOWHERE else own

    def _of_class(self, kind: type, name: str) -> Any:
        """What a class or its bases have under a name, with the facts that tell whether it is a descriptor."""
        result = _in_class(kind, name)
        if result is not NOWHERE and type(result).__flags__ & HEAP:
            self.type_of(result)
            self.version(type(result))
        return result

    def _attribute_of_type(self, value: type, name: str) -> Any:
        kind = type(value)
        self.version(value)
        self.version(kind)
        if kind.__getattribute__ is not type.__getattribute__:
            raise Unknown(f"attributes of {kind}")
        result, of_class = self._of_class(value, name), self._of_class(kind, name)
        if type(of_class) in IN_C:
            return self._read(of_class, value, name)
        is_itself = isinstance(result, THEMSELVES) or (result is not NOWHERE and not hasattr(type(result), "__get__"))
        if _is_data_descriptor(of_class) or not is_itself:
            raise Unknown(f"{name} of {value}")
        return result

    def _getter(self, computes: property) -> types.FunctionType:
        """The function of a property, which `__init__` may give another one. It is owned, so that no other has its address."""
        getter: types.FunctionType = self.constant(self.pointer(computes, "fget"))
        return getter

    def _read(self, getter: Any, value: Any, name: str) -> Any:
        """An attribute that `getter` computes in C. The launcher reads it in each call. NOWHERE if that raises AttributeError."""
        if type(getter) is types.GetSetDescriptorType and not any(getter is each for each in GETTERS):
            raise Unknown(f"{name} of {type(value)}, computed in C")
        try:
            result = (type if isinstance(value, type) else object).__getattribute__(value, name)
        except AttributeError:
            result = NOWHERE
        self.constant(value)
        self._note(ATTRIBUTE, value, 0 if result is NOWHERE else id(result), name)
        return self.constant(result)

    def _items(self, value: dict[Any, Any]) -> dict[Any, Any]:
        if (ITEMS, id(value), "") not in self._facts and not all(map(_compares_in_c, dict.keys(value))):
            raise Unknown(f"keys of {type(value)} that compare in a way of their own")
        self._note(ITEMS, value, {})
        items: dict[Any, Any] = self._facts[ITEMS, id(value), ""][2]
        return items

    def _note(self, kind: int, value: Any, expected: Any, name: str = "", version: int = 0) -> None:
        if id(value) not in self._made:
            self._facts.setdefault((kind, id(value), name), [kind, value, expected, name, version, -1])


def described(fact: tuple[Any, ...]) -> str:
    """A fact as the launcher takes it, in words."""
    kind, value, expected, name, *_ = fact
    named = value.__qualname__ if isinstance(value, type | types.FunctionType) else f"an object of {type(value).__qualname__}"
    keys = f" {list(expected[::2])}" if kind in (ITEMS, ALL_ITEMS) else ""
    return f"{KINDS[kind]} {name or ''}{keys} of {named}".replace("  ", " ")


def _compares_in_c(key: Any) -> bool:
    return type(key) in KEYS or isinstance(type(key).__eq__, types.WrapperDescriptorType)


def _is_data_descriptor(value: Any) -> bool:
    """Whether an attribute of a class takes precedence over what an object's dictionary has."""
    return hasattr(type(value), "__set__") or hasattr(type(value), "__delete__")


def _in_class(kind: type, name: str) -> Any:
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), NOWHERE)
