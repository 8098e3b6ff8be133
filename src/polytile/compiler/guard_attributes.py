"""Facts about objects that guards read: what was found where, in the order in which it is found again.

An attribute is a fact about one place where Python's own rules find it: the object's dictionary, or its class. Code that
computes attributes, such as that of a property, is followed (guard_code.py). Where it cannot be, the fact is the attribute's
value, and the launcher reads it anew each time.
"""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from polytile.compiler.guard_code import NOWHERE, PLAIN, Unknown, follow

TYPE, VERSION, POINTER, ITEMS, ALL_ITEMS, ELEMENTS, ATTRIBUTE = range(7)
"""The kinds of facts of runtime/guard_memo.c."""

PYTHONS_OWN = (vars(object)["__getattribute__"], vars(types.ModuleType)["__getattribute__"])
"""Methods by which objects' attributes are found in their dictionaries and classes."""

HEAP = 1 << 9
"""The flag of types whose objects may get another type."""

TENSORS = (torch.Tensor, torch.nn.Parameter)
"""The types of tensors whose metadata are compared."""

MEMBERS = ("_parameters", "_buffers", "_modules")
"""The dictionaries in which `torch.nn.Module.__getattr__` looks for an attribute."""

FOLLOWED = ("__code__", "__closure__", "__defaults__", "__kwdefaults__")
"""Attributes of functions that are pointers."""

THEMSELVES = (types.FunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)
"""Types of attributes of a class that are read of the class as they are."""


SUBSCRIPTED = (dict, collections.OrderedDict, tuple, list, types.MappingProxyType)
"""Types of containers of which `value[key]` does no more than look up."""


class Facts:
    """Facts, each noted once. `version_of` gives the version of a type, 0 if it has none."""

    def __init__(self, version_of: Callable[[type], int]) -> None:
        self._version_of = version_of
        self._facts: dict[tuple[Any, ...], list[Any]] = {}
        """(kind, object, expected, name, version, length) by the kind, the object's address and the name."""
        self._constants: list[Any] = []
        self._made: dict[int, Any] = {}
        """Objects that are made at each access, by their addresses: lists and tuples, which are compared by their items with what
        an attribute gives, and bound methods, which consist of a function and an object that facts are about."""
        if sys.version_info < (3, 11):  # where sys._clear_type_cache() has versions of types come back, though not of this one
            self.version(self.constant(type("Cleared", (), {})))

    def in_order(self) -> tuple[tuple[Any, ...], ...]:
        """The facts as the launcher takes them: those that Python code finds out come last."""
        facts = sorted(self._facts.values(), key=lambda fact: fact[0] == ATTRIBUTE)
        for fact in facts:
            if fact[0] in (ITEMS, ALL_ITEMS):
                fact[2] = tuple(part for key, each in fact[2].items() for part in (key, 0 if each is NOWHERE else id(each)))
        return tuple(map(tuple, facts))

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
        self._note(VERSION, kind, 0, version=version)

    def pointer(self, value: Any, name: str) -> Any:
        """What the attribute of this name, which is a pointer in the object, leads to."""
        if id(value) in self._made:
            raise Unknown(f"{name} of what is made at each access")
        if name in FOLLOWED and not isinstance(value, types.FunctionType):
            raise Unknown(f"{name} of {type(value)}")
        if name == "__dict__" and isinstance(value, type):
            raise Unknown("the dictionary of a type")
        found = value.cell_contents if name == "cell_contents" else object.__getattribute__(value, name)
        self._note(POINTER, value, 0 if found is None and name != "cell_contents" else id(found), name)
        if type(found) in PLAIN:
            self.constant(found)
        return found

    def item(self, value: Any, key: Any) -> Any:
        """What a dictionary, tuple or list has under a key; NOWHERE if a dictionary lacks it."""
        if isinstance(value, types.MappingProxyType):  # of a type, whose version is noted
            return value.get(key, NOWHERE)
        if type(value) in (tuple, list):
            self.length(value)
            return value[key]
        if not isinstance(value, dict) or type(key) not in (str, int):
            raise Unknown(f"an item of {type(value)}")
        found = dict.get(value, key, NOWHERE)
        self._items(value)[key] = found
        return found

    def subscript(self, value: Any, key: Any) -> Any:
        """What Python code gets by `value[key]`."""
        if type(value) not in SUBSCRIPTED:
            raise Unknown(f"an item of {type(value)}")
        self.type_of(value)
        found = self.item(value, key)
        if found is NOWHERE:
            raise Unknown(f"an item that {type(value)} lacks")
        return found

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
        if not isinstance(value, dict) or not all(type(key) in (str, int) for key in dict.keys(value)):
            raise Unknown(f"the keys of {type(value)}")
        items = list(dict.items(value))
        self._note(ALL_ITEMS, value, dict(items))
        return items

    def lacks(self, value: Any, name: str) -> None:
        """Notes that an object has no attribute of this name."""
        if id(value) in self._made:
            raise Unknown(f"whether what is made at each access has {name}")
        try:
            found = self._by_rules(value, name)
        except Unknown:
            found = None
        if found is not NOWHERE:
            self.constant(value)
            self._note(ATTRIBUTE, value, 0, name)

    def attribute(self, value: Any, name: str) -> Any:
        """An object's attribute."""
        if id(value) in self._made:
            return self._of_method(value, name)
        if isinstance(value, types.CellType) or (isinstance(value, types.FunctionType) and name in FOLLOWED):
            return self.pointer(value, name)
        if type(value) is property and name in ("fget", "fset", "fdel"):  # which never change
            return getattr(value, name)
        try:
            found = self._attribute_of_type(value, name) if isinstance(value, type) else self._by_rules(value, name)
        except Unknown:
            found = NOWHERE
        return self._computed(value, name) if found is NOWHERE else found

    def _of_method(self, value: Any, name: str) -> Any:
        if not isinstance(value, types.MethodType) or name not in ("__func__", "__self__"):
            raise Unknown(f"{name} of what is made at each access")
        return getattr(value, name)

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
        found = self._by_class(value, name, kind.__mro__)
        if found is NOWHERE and isinstance(value, types.ModuleType) and self.item(vars(value), "__getattr__") is not NOWHERE:
            raise Unknown(f"attributes of {value}")
        if found is not NOWHERE or not hasattr(kind, "__getattr__"):
            return found
        if kind.__getattr__ is not torch.nn.Module.__getattr__:
            raise Unknown(f"attributes of {kind}")
        self.pointer(kind.__getattr__, "__code__")
        for members in MEMBERS:
            every = self.item(self.pointer(value, "__dict__"), members)
            self.type_of(every)
            found = self.item(every, name) if found is NOWHERE else found
        return found

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
        found = NOWHERE if isinstance(value, type) else self._plainly(value, name)
        if found is NOWHERE:
            raise Unknown(f"{name} of {type(value)}")
        return found

    def _plainly(self, value: Any, name: str) -> Any:
        of_class = self._of_class(type(value), name)
        if name == "__class__" and of_class is vars(object)[name]:
            return type(value)
        if name == "__dict__":
            return self.pointer(value, name)
        if type(of_class) is property and isinstance(of_class.fget, types.FunctionType):
            return follow(self, of_class.fget, (value,))
        if _is_data_descriptor(of_class):
            raise Unknown(f"{name} of {type(value)}")
        own = self.item(self.pointer(value, "__dict__"), name) if hasattr(value, "__dict__") else NOWHERE
        if own is NOWHERE and isinstance(of_class, types.FunctionType):
            method = types.MethodType(of_class, value)
            self._made[id(method)] = method
            return method
        if own is NOWHERE and hasattr(type(of_class), "__get__"):
            raise Unknown(f"{name} of {type(value)}")
        return of_class if own is NOWHERE else own

    def _of_class(self, kind: type, name: str) -> Any:
        """What a class or its bases have under a name, with the facts that tell whether it is a descriptor."""
        found = _in_class(kind, name)
        if found is not NOWHERE and type(found).__flags__ & HEAP:
            self.type_of(found)
            self.version(type(found))
        return found

    def _attribute_of_type(self, value: type, name: str) -> Any:
        kind = type(value)
        self.version(value)
        self.version(kind)
        found = self._of_class(value, name)
        plain = kind.__getattribute__ is type.__getattribute__ and not _is_data_descriptor(self._of_class(kind, name))
        if plain and (isinstance(found, THEMSELVES) or (found is not NOWHERE and not hasattr(type(found), "__get__"))):
            return found
        return self._computed(value, name)

    def _computed(self, value: Any, name: str) -> Any:
        """An attribute that the launcher reads in each call. A list or tuple of constants may be another one each time."""
        found = getattr(value, name)
        is_new = type(found) in (list, tuple) and all(type(each) in PLAIN for each in found) and getattr(value, name) is not found
        self._note(ATTRIBUTE, value, id(found), name, length=len(found) if is_new else -1)
        if is_new:
            self._made[id(found)] = found
        return self.constant(found)

    def _items(self, value: dict[Any, Any]) -> dict[Any, Any]:
        self._note(ITEMS, value, {})
        items: dict[Any, Any] = self._facts[ITEMS, id(value), ""][2]
        return items

    def _note(self, kind: int, value: Any, expected: Any, name: str = "", version: int = 0, length: int = -1) -> None:
        if id(value) not in self._made:
            self._facts.setdefault((kind, id(value), name), [kind, value, expected, name, version, length])


def _is_data_descriptor(value: Any) -> bool:
    """Whether an attribute of a class takes precedence over what an object's dictionary has."""
    return hasattr(type(value), "__set__") or hasattr(type(value), "__delete__")


def _in_class(kind: type, name: str) -> Any:
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), NOWHERE)
