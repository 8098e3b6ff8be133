"""Facts of memos of guards, each with the change that it must not overlook."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from polytile.compiler.front_door import door_of, install
from polytile.compiler.guard_attributes import Facts
from polytile.compiler.guard_code import Unknown
from polytile.compiler.guard_reads import Reads
from polytile.counters import counters
from polytile.runtime import entry, native

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="dictionaries have no versions")


class Watched(Facts):
    """Facts that can be compared time and again."""

    memo: Any = None

    def hold(self) -> bool:
        if self.memo is None:
            self.memo = tuple(self.in_order()), self.owned(), (), (), None
        try:
            return entry.module().Memo(*self.memo) is not None
        except ValueError:
            return False


def facts() -> Watched:
    return Watched(entry.module().type_version)


# properties -----------------------------------------------------------------------------------------------------------


class Chooses:
    def __init__(self) -> None:
        self.first, self.second, self.scale = "first", "second", 0.5

    @property
    def chosen(self) -> str:
        return self.first

    @property
    def by_scale(self) -> str:
        if self.scale == 0.5:
            return self.first
        return self.second


def other(chooses: Chooses) -> str:
    return chooses.second


def again(getter: Callable[[Any], Any]) -> None:
    """Has `Chooses.chosen` compute something else, without a change of the class."""
    Chooses.chosen.__init__(getter)  # type: ignore[misc]


def test_a_property_that_is_made_anew_in_place_is_noticed() -> None:
    before, chooses, noted = Chooses.chosen.fget, Chooses(), facts()  # type: ignore[attr-defined]
    assert noted.attribute(chooses, "chosen") == "first" and noted.hold()
    try:
        again(other)
        assert chooses.chosen == "second" and not noted.hold()
    finally:
        again(before)
    assert noted.hold()


def test_the_getter_of_a_property_is_read_anew() -> None:
    before, noted = Chooses.chosen.fget, facts()  # type: ignore[attr-defined]
    assert noted.attribute(Chooses.chosen, "fget") is before
    try:
        again(other)
        assert not noted.hold()
    finally:
        again(before)


def test_no_other_function_gets_the_address_of_a_getter_that_was_followed() -> None:
    before, chooses = Chooses.chosen.fget, Chooses()  # type: ignore[attr-defined]
    try:
        again(types.FunctionType(other.__code__, dict(globals()), "fleeting"))
        getter, noted = weakref.ref(Chooses.chosen.fget), facts()  # type: ignore[attr-defined]
        assert noted.attribute(chooses, "chosen") == "second"
        again(before)
        assert getter() is not None and not noted.hold()
    finally:
        again(before)


def test_no_other_number_gets_the_address_of_one_that_followed_code_compared() -> None:
    chooses, noted = Chooses(), facts()
    chooses.scale = sum([0.25, 0.25])
    assert noted.attribute(chooses, "by_scale") == "first"
    for k in range(1, 50):
        chooses.scale = 0.5 + k
        assert chooses.by_scale == "second" and not noted.hold()


# code in C ------------------------------------------------------------------------------------------------------------


class Counts(Tensor):
    asked = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counts.asked += 1
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("name", ["requires_grad", "shape", "grad"])
def test_getters_of_tensors_are_not_called_while_facts_are_compared(name: str) -> None:
    for tensor in (torch.ones(3).as_subclass(Counts), torch.ones(3)):  # under a mode, those of any tensor run Python code
        before, noted = Counts.asked, facts()
        with pytest.raises(Unknown):
            noted.attribute(tensor, name)
        assert Counts.asked == before


def test_a_class_whose_documentation_is_computed_is_not_asked_for_it() -> None:
    class Computes:
        def __get__(self, owner: Any, kind: Any) -> str:
            raise AssertionError("asked")

    class Documented:
        __doc__ = Computes()  # type: ignore[assignment]

    with pytest.raises(Unknown):
        facts().attribute(Documented, "__doc__")


class Collides:
    """A key that would be compared with a string by Python code."""

    def __init__(self, name: str) -> None:
        self.name, self.compared = name, 0

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        self.compared += 1
        return False


def test_a_key_that_compares_in_python_is_noticed_without_a_comparison() -> None:
    table, noted = dict[Any, int](a=1), facts()
    noted.item(table, "a"), noted.item(table, "b")
    assert noted.hold()
    table[collides := Collides("b")] = 2
    assert not noted.hold() and collides.compared == 0
    del table[collides]
    table[torch.nn.Linear] = 3  # a class, which C compares
    assert noted.hold()


# comprehensions and builtins ------------------------------------------------------------------------------------------


class Layer:
    slides = False


class Layers:
    def __init__(self) -> None:
        self.every = [Layer(), Layer()]

    @property
    def sliding(self) -> list[bool]:
        return [getattr(each, "slides", True) for each in self.every]

    @property
    def all_slide(self) -> bool:
        if len(self.every) == 0:
            return False
        return all(each.slides for each in self.every)


CHANGES: dict[str, Callable[[Layers], Any]] = {
    "an element's attribute": lambda layers: setattr(layers.every[1], "slides", 1),
    "an element's class": lambda layers: setattr(layers.every[0], "__class__", Layers),
    "another element": lambda layers: layers.every.append(Layer()),
    "none": lambda layers: layers.every.clear(),
    "another list": lambda layers: setattr(layers, "every", list(layers.every)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_a_comprehension_reads_is_noticed(change: Callable[[Layers], Any]) -> None:
    layers, noted = Layers(), facts()
    assert noted.attribute(layers, "sliding") == [False, False] and noted.attribute(layers, "all_slide") is False
    assert noted.hold()
    change(layers)
    assert not noted.hold()


def test_all_reads_no_further_than_the_element_that_decides() -> None:
    layers, noted = Layers(), facts()
    noted.attribute(layers, "all_slide")
    vars(layers.every[1])["slides"] = True
    assert noted.hold()


def test_an_attribute_that_getattr_did_not_find_may_come() -> None:
    layers, noted, lacking = Layers(), facts(), types.SimpleNamespace()
    layers.every = [lacking]  # type: ignore[list-item]
    assert noted.attribute(layers, "sliding") == [True] and noted.hold()
    lacking.slides = False
    assert layers.sliding == [False] and not noted.hold()


@pytest.mark.parametrize("name", ["getattr", "all", "len"])
def test_builtins_that_are_hidden_are_not_taken_for_pythons_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, noted = Layers(), facts()
    noted.attribute(layers, "sliding"), noted.attribute(layers, "all_slide")
    monkeypatch.setitem(globals(), name, lambda *given: 7)
    assert not noted.hold()
    with pytest.raises(Unknown):
        noted = facts()
        noted.attribute(layers, "sliding"), noted.attribute(layers, "all_slide")


def test_super_in_a_comprehension_is_not_followed() -> None:
    class Asks:
        def __init__(self) -> None:
            self.every = [1]

        def __getattribute__(self, name: str) -> Any:
            if name != "answer":
                return super().__getattribute__(name)
            return [super().__getattribute__(name) for each in self.every]  # type: ignore[misc]

    with pytest.raises(Unknown):
        facts().attribute(Asks(), "answer")


# guards that are expressions ------------------------------------------------------------------------------------------

THING: Any = types.SimpleNamespace(table={"a": 1, "b": 2})
LAYER = Layer()


def read(text: str) -> Watched:
    noted = facts()
    reads = Reads(noted, read, None)
    noted.type_of(THING)
    reads._expression(text)
    list(reads.steps())
    return noted


def test_the_type_that_an_expression_asks_for_is_a_fact() -> None:
    noted = read("G['Layer'] is type(G['LAYER'])")
    assert noted.hold()
    LAYER.__class__ = Layers  # type: ignore[assignment]
    try:
        assert not noted.hold()
    finally:
        LAYER.__class__ = Layer


def test_the_order_of_keys_by_which_an_expression_looks_up_is_a_fact() -> None:
    noted = read("dict.__getitem__(G['THING'].table, list(dict.keys(G['THING'].table))[1]) is None")
    assert noted.hold()
    THING.table = {"b": 2, "a": 1}
    assert not noted.hold()
    noted = read("dict.__getitem__(G['THING'].table, list(dict.keys(G['THING'].table))[1]) is None")
    THING.table["a"] = THING.table.pop("b"), THING.table.pop("a")
    assert not noted.hold()


# a forward of any arguments -------------------------------------------------------------------------------------------


class Shifts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = 2

    def forward(*given: Any) -> Tensor:  # type: ignore[override]
        self, x = given
        result: Tensor = x + self.shift
        return result


def test_a_module_among_the_arguments_of_its_forward_is_read() -> None:
    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        counters.add("graphs_compiled")
        return graph.forward

    torch._dynamo.reset()
    native.module()
    module, x = Shifts(), torch.ones(3)
    call = install(torch.compile(module, backend=backend, dynamic=True), module, backend, True, "on")
    for _ in range(4):
        call(x)
    door = door_of(call)
    assert door is not None
    (made,) = door._memos[door.entries()[0].guard_manager]
    assert made.memo is not None and made.memo(x) and not made.memo(torch.ones(3, 3))
    module.shift = 5
    assert not made.memo(x) and torch.equal(call(x), x + 5)
    module.shift = 2
    assert torch.equal(call(x), x + 2)
