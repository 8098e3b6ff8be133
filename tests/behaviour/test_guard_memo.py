"""Guards are answered from a memo where nothing that they read has changed, and are evaluated where something has."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polytile.compiler import guard_reads
from polytile.compiler.front_door import FrontDoor, door_of, install
from polytile.compiler.guard_attributes import ATTRIBUTE, Facts
from polytile.compiler.guard_code import Unknown
from polytile.counters import counters
from polytile.runtime import entry, native

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="dictionaries have no versions")

FACTOR = 2.0
TABLE = {"scale": {"of": 3}}


def by(x: Tensor, factor: float = 1.0) -> Tensor:
    return x * factor


class Settings:
    """Attributes under other names, as configurations of models have them."""

    names = {"width": "size"}

    def __init__(self) -> None:
        self.size, self.shift, self._halves = 4, 1.0, False

    def __getattribute__(self, name: str) -> Any:
        if name != "names" and name in super().__getattribute__("names"):
            name = super().__getattribute__("names")[name]
        return super().__getattribute__(name)

    @property
    def halves(self) -> bool:
        return self._halves


class Model(nn.Module):
    steps = 2

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.register_buffer("offset", torch.zeros(4))
        self.settings, self.powers, self.options = Settings(), [1, 2], {"bias": 0.5}

    def forward(self, x: Tensor, times: int = 1) -> Tensor:
        for layer in self.layers:
            x = by(layer(x)) + self.offset
        if self.settings.halves:
            x = x / 2
        x = x * FACTOR + TABLE["scale"]["of"] * self.settings.width + self.settings.shift
        return x * self.powers[1] * self.steps * times + self.options["bias"]


class Guarded:
    """A module that Dynamo has compiled, the memo for its guards, and the guards."""

    def __init__(self, model: nn.Module, *given: Any) -> None:
        torch._dynamo.reset()
        native.module()
        torch.compile(model, backend="eager", dynamic=True)(*given)
        function = type(model).forward
        assert isinstance(function, types.FunctionType)
        cached = torch._dynamo.eval_frame._debug_get_cache_entry_list(function.__code__)[0]
        self.manager, self.model, self.names = cached.guard_manager, model, function.__code__.co_varnames
        making = guard_reads.Making(entry.module(), self.manager.root, function, model)
        while not making.done:
            making()
        self.memo = making.memo

    def hold(self, *given: Any) -> bool:
        return bool(self.manager.root.check(dict(zip(self.names, (self.model, *given, 1), strict=False))))


class Behind:
    """A module behind a front door, with the memo for its guards."""

    def __init__(self, model: nn.Module) -> None:
        torch._dynamo.reset()
        native.module()
        self.call = install(torch.compile(model, backend=as_traced, dynamic=True), model, as_traced, True, "on")

    @property
    def door(self) -> FrontDoor:
        found = door_of(self.call)
        assert found is not None
        return found

    @property
    def memo(self) -> Any:
        function = self.door.called_function()
        assert function is not None
        return self.door.memo(self.door.entries()[0].guard_manager, function)


def as_traced(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    counters.add("graphs_compiled")
    return graph.forward


@contextlib.contextmanager
def item(of: Any, key: Any, value: Any) -> Iterator[None]:
    before = of[key]
    of[key] = value
    yield
    of[key] = before


@contextlib.contextmanager
def attribute(of: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(of, name)
    setattr(of, name, value)
    yield
    setattr(of, name, before)


@contextlib.contextmanager
def without_gradient(parameter: nn.Parameter) -> Iterator[None]:
    parameter.requires_grad_(False)
    yield
    parameter.requires_grad_(True)


@contextlib.contextmanager
def marked(tensor: Tensor) -> Iterator[None]:
    tensor._dynamo_dynamic_indices = {0}  # type: ignore[attr-defined]
    yield
    del tensor._dynamo_dynamic_indices  # type: ignore[attr-defined]


CHANGES: dict[str, Callable[[Model], Any]] = {
    "a global": lambda model: item(globals(), "FACTOR", 5.0),
    "an item of an item of a global": lambda model: item(TABLE["scale"], "of", 4),
    "a function's default": lambda model: attribute(by, "__defaults__", (2.0,)),
    "a function's code": lambda model: attribute(by, "__code__", (lambda x, factor=1.0: x).__code__),
    "an attribute of the class": lambda model: attribute(Model, "steps", 3),
    "an item of a list": lambda model: item(model.powers, 1, 3),
    "an item of a dictionary": lambda model: item(model.options, "bias", 0.25),
    "a layer": lambda model: item(model.layers, 1, nn.Linear(4, 4, bias=False)),
    "a layer's class": lambda model: attribute(model.layers[0], "__class__", type("Other", (nn.Linear,), {})),
    "a layer's dictionary": lambda model: attribute(model.layers[0], "__dict__", {**vars(model.layers[0]), "forward": abs}),
    "a parameter's gradient": lambda model: without_gradient(model.layers[2].weight),
    "a parameter's values, of another type": lambda model: attribute(model.layers[2].weight, "data", torch.zeros(4, 4).double()),
    "a parameter's marks": lambda model: marked(model.layers[2].weight),
    "what a property computes": lambda model: attribute(model.settings, "_halves", True),
    "an attribute by another name": lambda model: attribute(model.settings, "size", 5),
    "the other name": lambda model: item(Settings.names, "width", "shift"),
    "the gradient mode": lambda model: torch.no_grad(),
    "autocast": lambda model: torch.autocast("cpu", torch.bfloat16),
    "the default device": lambda model: torch.device("meta"),
    "inference mode": lambda model: torch.inference_mode(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_what_guards_read_is_noticed_and_so_is_its_end(change: Callable[[Model], Any]) -> None:
    model, x = Model(), torch.randn(3, 4)
    behind = Behind(model)
    for _ in range(2):
        behind.call(x)
    assert behind.memo(x)
    root = behind.door.entries()[0].guard_manager.root
    with change(model):  # some versions of torch have no guard on some of these
        assert not behind.memo(x) or root.check({"self": model, "x": x, "times": 1})
    for _ in range(100):  # a type's version never comes back: then facts are noted anew, in parts
        behind.call(x)
    assert behind.memo(x)


def test_a_class_that_is_as_before_after_a_change_leaves_the_memo() -> None:
    """Each trace by torch.fx replaces methods of nn.Module for a while, so that all modules' classes have another version."""
    model, x = Model(), torch.randn(3, 4)
    behind = Behind(model)
    for _ in range(2):
        behind.call(x)
    memo = behind.memo
    with attribute(nn.Module, "__getattr__", lambda module, name: None):
        assert not memo(x)
    assert memo(x), "no call has noted facts anew"
    torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4)))
    assert memo(x) and behind.memo is memo
    nn.Module.is_new = True  # type: ignore[assignment]
    assert not memo(x), "a base has an attribute more"
    del nn.Module.is_new
    assert memo(x)
    steps = Model.steps
    del Model.steps
    assert not memo(x)
    Model.steps = steps
    assert memo(x) is (list(vars(Model))[-1] != "steps"), "in another order they are not compared"


def test_a_replaced_parameter_is_noticed_and_the_new_one_is_evaluated() -> None:
    model, x = Model(), torch.randn(3, 4)
    behind = Behind(model)
    behind.call(x), behind.call(x)
    assert behind.memo(x)
    model.layers[1].weight = nn.Parameter(torch.zeros(4, 4))
    assert not behind.memo(x)
    assert torch.equal(behind.call(x), model(x))


def test_arguments_have_to_be_like_those_for_which_guards_held() -> None:
    behind, x = Behind(Model()), torch.randn(3, 4)
    for _ in range(3):
        behind.call(x), behind.call(x, 2), behind.call(x, times=3)
    memo = behind.memo
    assert memo(x) and memo(torch.randn(3, 4))
    assert not memo(torch.empty(0).set_(torch.randn(6, 4).untyped_storage(), 4, (3, 4), (4, 1)))
    assert not memo(torch.randn(5, 4)) and not memo(x.double()) and not memo(x.clone().requires_grad_())
    assert not memo(torch.randn(4, 3).t()) and not memo(x, x) and not memo([x]) and not memo(x, 1.5)
    behind.call(torch.randn(5, 4))
    assert memo(torch.randn(5, 4)) and memo(x)


def test_a_memo_never_says_that_guards_hold_where_they_do_not() -> None:
    model, x = Model(), torch.randn(3, 4)
    behind, draw = Behind(model), random.Random(0)
    behind.call(x)
    root = behind.door.entries()[0].guard_manager.root
    asked, answered = 0, 0
    for _ in range(60):
        with contextlib.ExitStack() as stack:
            for change in draw.sample(sorted(CHANGES.keys() - {"an attribute of the class"}), draw.choice((0, 0, 1, 2))):
                stack.enter_context(CHANGES[change](model))
            given = x if draw.random() < 0.7 else torch.randn(draw.randint(1, 5), 4)
            says, holds = behind.memo(given), root.check({"self": model, "x": given, "times": 1})
            behind.door.entry.find(given)
            assert holds or not says
            asked, answered = asked + holds, answered + says
    assert answered > asked / 2


def test_code_that_computes_attributes_is_followed_where_it_only_looks_up() -> None:
    facts = Facts(entry.module().type_version)
    settings = Settings()
    assert facts.attribute(settings, "width") == 4 and facts.attribute(settings, "halves") is False
    facts.lacks(settings, "depth")
    assert not [fact for fact in facts.in_order() if fact[0] == ATTRIBUTE]


def test_an_attribute_that_other_code_computes_has_no_memo() -> None:
    class Counted:
        def __init__(self) -> None:
            self.values = [1, 2]

        @property
        def total(self) -> int:
            return sum(self.values)

        @property
        def doubled(self) -> list[int]:
            return [2 * each for each in self.values]

    for name in ("total", "doubled"):
        with pytest.raises(Unknown):
            Facts(entry.module().type_version).attribute(Counted(), name)


def test_an_attribute_that_c_code_computes_is_read_in_each_call() -> None:
    class Slotted:
        __slots__ = ("given", "other")

    facts, slotted = Facts(entry.module().type_version), Slotted()
    slotted.given = 3
    assert facts.attribute(slotted, "given") == 3 and facts.attribute(by, "__name__") == "by"
    facts.lacks(slotted, "other")
    memo = entry.module().Memo(tuple(facts.in_order()), facts.owned(), (), (), None)
    assert [fact[0] for fact in facts.in_order()].count(ATTRIBUTE) == 3 and memo is not None
    for change in (attribute(slotted, "given", 4), attribute(by, "__name__", "to")):
        with change, pytest.raises(ValueError, match="a fact has changed"):
            entry.module().Memo(tuple(facts.in_order()), facts.owned(), (), (), None)
    slotted.other = 1
    with pytest.raises(ValueError, match="a fact has changed"):
        entry.module().Memo(tuple(facts.in_order()), facts.owned(), (), (), None)


def test_what_guards_read_is_not_kept_alive() -> None:
    models = {"first": Model()}

    def function(x: Tensor) -> Tensor:
        result: Tensor = models["first"](x)
        return result

    torch._dynamo.reset()
    run = install(torch.compile(function, backend=as_traced, dynamic=True), function, as_traced, True, "on")
    x, seen = torch.randn(3, 4), weakref.ref(models["first"])
    run(x), run(x)
    door = door_of(run)
    assert door is not None and door.memo(door.entries()[0].guard_manager, function)(x)
    models.clear()
    gc.collect()
    assert seen() is None


def test_a_kind_of_guard_that_is_not_known_has_no_memo(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Guarded(Model(), torch.randn(3, 4)).memo is not None
    monkeypatch.setattr(guard_reads.Reads, "_leaf", lambda self, leaf, value: (_ for _ in ()).throw(guard_reads.Unknown("new")))
    guarded = Guarded(Model(), torch.randn(3, 4))
    assert guarded.memo is None and guarded.hold(torch.randn(3, 4))


def test_a_memo_is_made_in_parts_by_calls_that_compile_nothing() -> None:
    model, x = Model(), torch.randn(3, 4)
    behind = Behind(model)
    behind.call(x)
    door = behind.door
    door._memos.clear()
    door.learn(at_once=False)
    function, guards = door.called_function(), door.entries()[0].guard_manager
    assert function is not None and isinstance(door.memo(guards, function, at_once=False), guard_reads.Making)
    calls = 0
    while isinstance(door.memo(guards, function, at_once=False), guard_reads.Making):
        behind.call(x)
        calls += 1
        assert calls < 200
    assert calls > 2 and not behind.memo(x)  # which no call has asked yet
    behind.call(x)
    assert behind.memo(x)


def test_what_changes_while_a_memo_is_made_leaves_none() -> None:
    guarded = Guarded(Model(), torch.randn(3, 4))
    making = guard_reads.Making(entry.module(), guarded.manager.root, Model.forward, guarded.model)  # type: ignore[arg-type]
    while making() is making and not isinstance(guarded.model.options, list):  # type: ignore[union-attr]
        guarded.model.options["bias"] += 1.0  # type: ignore[operator, index]
    assert making.done and making.memo is None
