"""What guards read by Python's rarer rules: a memo notices where that changes, or there is none."""

from __future__ import annotations

import collections
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor

from polytile.compiler.front_door import FrontDoor, door_of, install
from polytile.compiler.guard_attributes import Facts
from polytile.compiler.guard_code import NOWHERE, Unknown
from polytile.counters import counters
from polytile.runtime import entry, native

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="dictionaries have no versions")


class Asked:
    """A function behind a front door, called until there can be a memo, and what that and the guards say of a call."""

    def __init__(self, function: types.FunctionType, *given: Any, **named: Any) -> None:
        def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            return graph.forward

        torch._dynamo.reset()
        native.module()
        call = install(torch.compile(function, backend=backend, dynamic=True), function, backend, True, "on")
        for _ in range(3):
            call(*given, **named)
        door = door_of(call)
        assert isinstance(door, FrontDoor)
        door.learn()
        self._root, self._function, self._given, self._named = door.entries()[0].guard_manager.root, function, given, named
        self._memo = door.memo(door.entries()[0].guard_manager, function)
        for _ in range(2):
            door.entry.find(*given, **named)

    def memo_says(self) -> bool:
        return self._memo is not None and bool(self._memo(*self._given, **self._named))

    def guards_say(self, **variables: Any) -> bool:
        return bool(self._root.check(variables))


def facts() -> Facts:
    return Facts(entry.module().type_version)


def holds(noted: Facts) -> bool:
    """Whether the facts still hold."""
    try:
        return entry.module().Memo(tuple(noted.in_order()), noted.owned(), (), (), None) is not None
    except ValueError:
        return False


# default values -------------------------------------------------------------------------------------------------------


def test_a_dictionary_as_a_default_value_is_not_left_unread() -> None:
    names = {"first": "double"}

    def function(x: Tensor, names: dict[str, str] = names) -> Tensor:
        return x * 2 if names["first"] == "double" else x + 1

    x = torch.randn(4)
    asked = Asked(function, x)
    names["first"] = "shift"
    assert not asked.guards_say(x=x, names=names)
    assert not asked.memo_says()


def test_a_tensor_as_a_default_value_is_not_left_unread() -> None:
    weight = torch.randn(4)

    def function(x: Tensor, weight: Tensor = weight) -> Tensor:
        return x * weight

    x = torch.randn(4)
    asked = Asked(function, x)
    weight.requires_grad_()
    assert not asked.guards_say(x=x, weight=weight)
    assert not asked.memo_says()


def test_a_default_value_of_a_named_parameter_may_be_changed_in_place() -> None:
    def function(x: Tensor, *, factor: int = 2) -> Tensor:
        return x * factor

    x = torch.randn(4)
    asked = Asked(function, x)
    assert asked.memo_says()
    assert function.__kwdefaults__ is not None
    function.__kwdefaults__["factor"] = 3
    assert not asked.memo_says()


def test_values_in_keyword_arguments_are_read_as_far_as_guards_read_them() -> None:
    def function(**named: Tensor) -> Tensor:
        total = torch.zeros(4)
        for value in named.values():
            if value.grad is None:
                total = total + value
        return total

    x = torch.randn(4, requires_grad=True)
    asked = Asked(function, x=x)
    x.grad = torch.ones(4)
    assert asked.guards_say(named={"x": x}) or not asked.memo_says()


# attributes -----------------------------------------------------------------------------------------------------------


class Answers:
    """Gives `value` as an attribute, unless it is one of the classes below that do not."""

    def __init__(self, value: int) -> None:
        self.value = value


class Computes(Answers):
    def __get__(self, owner: Any, kind: type) -> int:
        return self.value

    def __delete__(self, owner: Any) -> None:
        raise AttributeError


class Owner:
    """An object with an attribute of its own, and one of its class, of the same name."""

    answer: Any

    def __init__(self) -> None:
        vars(self)["answer"] = 1


def test_a_descriptor_that_only_deletes_takes_precedence_over_an_objects_own_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Owner, "answer", Computes(5), raising=False)
    assert Owner().answer == 5
    with pytest.raises(Unknown):
        facts().attribute(Owner(), "answer")


def test_an_attribute_of_a_class_may_become_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, plain = Owner(), Answers(5)
    monkeypatch.setattr(Owner, "answer", plain, raising=False)
    noted = facts()
    assert noted.attribute(owner, "answer") == 1
    plain.__class__ = Computes
    assert owner.answer == 5 and not holds(noted)


def test_a_class_that_is_computed_is_read_each_time() -> None:
    class Poses:
        pose: type = int

        @property  # type: ignore[misc]
        def __class__(self) -> type:  # type: ignore[override]
            return self.pose

    poses, noted = Poses(), facts()
    assert noted.attribute(poses, "__class__") is int
    poses.pose = str
    assert not holds(noted)


def test_a_module_that_lacks_an_attribute_may_compute_it_later() -> None:
    module = types.ModuleType("computes")
    noted = facts()
    noted.lacks(module, "answer")
    vars(module)["__getattr__"] = lambda name: 1
    assert not holds(noted)
    with pytest.raises(Unknown):
        facts().lacks(module, "another")


def test_items_of_a_dictionary_that_computes_them_are_not_looked_up() -> None:
    class Twice(dict[str, int]):
        def __getitem__(self, key: str) -> int:
            return 2 * dict.__getitem__(self, key)

    for each in (Twice(a=1), collections.defaultdict(int, a=1)):
        with pytest.raises(Unknown):
            facts().subscript(each, "a")
    assert facts().subscript(collections.OrderedDict(a=1), "a") == 1


def test_keys_that_compare_in_a_way_of_their_own_are_not_looked_up() -> None:
    class Same(str):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = str.__hash__

    class Compares:
        def __call__(self, other: object) -> bool:
            return True

    class Called(str):
        __eq__ = Compares()  # type: ignore[assignment]
        __hash__ = str.__hash__

    for kind in (Same, Called):
        with pytest.raises(Unknown):
            facts().subscript({kind("b"): 1, "a": 2}, "a")


# code that is followed ------------------------------------------------------------------------------------------------


class Chooses:
    """A property that compares what `or` gives."""

    def __init__(self) -> None:
        self.own, self.default, self.first, self.second = 0, 5, "first", "second"

    @property
    def chosen(self) -> str:
        if (self.own or self.default) == 5:
            return self.first
        return self.second


def test_the_value_of_or_is_that_of_the_operand_that_decides() -> None:
    chooses, noted = Chooses(), facts()
    assert noted.attribute(chooses, "chosen") == "first"
    chooses.first = "third"
    assert not holds(noted)


class Named:
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


def test_super_that_is_not_pythons_own_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    named = Named()
    vars(named)["answer"] = 1
    monkeypatch.setitem(globals(), "super", lambda: types.SimpleNamespace(__getattribute__=lambda name: 2))
    assert named.answer == 2
    with pytest.raises(Unknown):
        facts().attribute(named, "answer")


# types ----------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="versions of types never come back")
def test_versions_of_types_that_come_back_are_not_mistaken() -> None:
    class Changes:
        answer = 1

    changes, noted = Changes(), facts()
    assert noted.attribute(changes, "answer") == 1
    version_of = entry.module().type_version
    before = version_of(Changes)
    Changes.answer = 2
    sys._clear_type_cache()
    while version_of(Changes) != before:
        Changes.answer = 2
        assert changes.answer == 2
    assert not holds(noted)


def test_what_is_absent_is_a_fact() -> None:
    noted, table = facts(), {"a": 1}
    assert noted.item(table, "b") is NOWHERE
    table["b"] = 2
    assert not holds(noted)


# a module's forward ---------------------------------------------------------------------------------------------------


def test_a_forward_with_the_same_code_but_another_closure_has_a_memo_of_its_own() -> None:
    def made(way: str) -> types.FunctionType:
        def forward(self: Any, x: Tensor) -> Tensor:
            return x * 2 if way == "double" else x + 100

        return forward

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        counters.add("graphs_compiled")
        return graph.forward

    class Module(torch.nn.Module):
        forward = made("double")

    torch._dynamo.reset()
    native.module()
    module, given = Module(), (torch.ones(3), torch.ones(2, 3))
    call = install(torch.compile(module, backend=backend, dynamic=True), module, backend, True, "on")
    for way in 2 * ("double", "shift"):
        Module.forward = made(way)
        for x in 4 * given:
            assert torch.equal(call(x), module(x))


# names ----------------------------------------------------------------------------------------------------------------


def test_a_class_whose_names_are_no_strings_has_no_facts() -> None:
    numbered = type("Numbered", (), {1: 2, "answer": 3})  # type: ignore[dict-item]
    with pytest.raises(Unknown, match="no strings"):
        facts().attribute(numbered(), "answer")
