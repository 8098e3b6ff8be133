"""Calls of what polytile.compile made go around Dynamo's frames, and notice whatever Dynamo would notice.

What is compiled here are Dynamo's graphs as they are, by a backend of the tests, but where polytile's programs matter: the front
door is the same.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polytile
from polytile.compiler import front_door, inference
from polytile.counters import counters
from polytile.errors import FrontDoorError, OptionError
from polytile.runtime import background, native

FACTOR = 2.0
SETTINGS = {"factor": 3.0}


def as_traced(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A backend that runs the graph as it is."""
    counters.add("graphs_compiled")
    return graph.forward


class Watched:
    """A function or module behind a front door. `slow` counts the calls that went through torch.compile."""

    def __init__(self, function: Any, mode: str = "on", **given: Any) -> None:
        native.module()  # no call waits for the launcher, and the door opens once that is there
        compiled = torch.compile(function, backend=as_traced, dynamic=True, **given)
        self.call = front_door.install(compiled, function, as_traced, True, mode)
        self.slow = watch(self.call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    @property
    def door(self) -> front_door.FrontDoor:
        return door_of(self.call)

    def goes_fast(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a call, the second one of its kind, goes around Dynamo."""
        self(*args, **kwargs)
        before = len(self.slow)
        self(*args, **kwargs)
        return len(self.slow) == before


def door_of(compiled: Any) -> front_door.FrontDoor:
    found = front_door.door_of(compiled)
    assert found is not None
    return found


def watch(compiled: Any) -> list[None]:
    """A list that grows with each call of `compiled` that goes through torch.compile."""
    door, slow = door_of(compiled), list[None]()
    usual = door.compiled

    def counted(*args: Any, **kwargs: Any) -> Any:
        slow.append(None)
        return usual(*args, **kwargs)

    door.compiled = counted
    return slow


def scaled(x: Tensor, by: float = 2.0, *rest: Tensor, shift: Tensor | None = None, **more: Tensor) -> Tensor:
    total = x * by + sum(rest) + sum(more.values())
    return total if shift is None else total + shift


def test_a_call_whose_guards_hold_goes_around_dynamo_however_it_passes_its_arguments() -> None:
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x,), {}), ((x, 3.0), {}), ((), {"by": 3.0, "x": x}), ((x, 2.0, y, y), {}), ((x,), {"shift": y}), ((x,), {"other": y}),
        ((x, 2.0, y), {"shift": y, "one": x, "two": y}),
    ]  # fmt: skip
    watched = Watched(scaled)
    for args, kwargs in ways:
        assert watched.goes_fast(*args, **kwargs), (args, kwargs)
        torch.testing.assert_close(watched(*args, **kwargs), scaled(*args, **kwargs))
    before = len(watched.slow)
    for rows in (5, 6, 7):
        torch.testing.assert_close(watched(other := torch.randn(rows, 3)), other * 2)
    assert len(watched.slow) == before
    for wrong in ((), (x, 2.0, 3), (x,)):
        with pytest.raises((TypeError, torch._dynamo.exc.TorchDynamoException)):
            watched(*wrong, x=x) if wrong == (x,) else watched(*wrong, by=1.0)


def test_defaults_and_code_that_are_replaced_are_noticed() -> None:
    def function(x: Tensor, by: float = 2.0, *, plus: float = 0.0) -> Tensor:
        return x * by + plus

    watched, x = Watched(function), torch.randn(4)
    assert watched.goes_fast(x)
    function.__defaults__ = (5.0,)
    assert torch.equal(watched(x), x * 5)
    assert watched.goes_fast(x)
    function.__kwdefaults__["plus"] = 1.0
    assert torch.equal(watched(x), x * 5 + 1)
    assert watched.goes_fast(x)
    function.__code__ = (lambda x, by=2.0, *, plus=0.0: x - by).__code__
    assert torch.equal(watched(x), x - 5)


class Marked(torch.Tensor):
    """A subclass that does nothing of its own."""


@contextlib.contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    names = owner if isinstance(owner, dict) else vars(owner) if isinstance(owner, type(types)) else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(names, name, value) if names is not None else patch.setattr(owner, name, value)
        yield


class Outer:
    """Attributes that a function reads through its closure."""

    power = 2


def test_whatever_dynamo_would_notice_is_noticed() -> None:
    outer, count = Outer(), 3

    def function(x: Tensor, times: int = 1) -> tuple[Tensor, bool]:
        for _ in range(count):
            x = x * FACTOR
        y = (x @ x.mT if x.ndim > 1 else x) * SETTINGS["factor"] * times + torch.ones(()) * 0.1
        return y**outer.power, torch.is_grad_enabled()

    def counts() -> Any:
        nonlocal count
        count = 2
        yield
        count = 3

    watched, x = Watched(function), torch.randn(4, 3)
    changes: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
        "a global": lambda: replaced(globals(), "FACTOR", 4.0),
        "an item of a global": lambda: replaced(SETTINGS, "factor", 5.0),
        "an attribute in the closure": lambda: replaced(outer, "power", 3),
        "the closure": contextlib.contextmanager(counts),
        "the gradient mode": torch.no_grad,
        "inference mode": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "the default type": lambda: default_type(torch.float64),
    }
    arguments: dict[str, tuple[Any, ...]] = {
        "nothing": (x,), "a size": (torch.randn(6, 3),), "a size of 1": (torch.randn(1, 3),), "dtype": (x.double(),),
        "rank": (torch.randn(5),), "a number": (x, 2), "requires_grad": (x.clone().requires_grad_(),),
        "a Parameter": (nn.Parameter(x.clone()),), "a subclass": (x.as_subclass(Marked),), "strides": (torch.randn(3, 4).t(),),
    }  # fmt: skip
    for what, args in arguments.items():
        torch.testing.assert_close(watched(*args), function(*args), msg=what)
    for what, change in changes.items():
        assert watched.goes_fast(x), what
        with change():
            torch.testing.assert_close(watched(x), function(x), msg=what)
        torch.testing.assert_close(watched(x), function(x), msg=f"no more {what}")
    for what, args in arguments.items():
        torch.testing.assert_close(watched(*args), function(*args), msg=f"{what} again")
    assert all(watched.goes_fast(*arguments[what]) for what in ("nothing", "a size", "dtype", "a number", "a Parameter"))


def test_functional_tensors_go_through_dynamo() -> None:
    watched, x = Watched(lambda x: (x * x).sum()), torch.randn(4, 3)
    assert watched.goes_fast(x)
    torch.testing.assert_close(torch.func.grad(watched.call)(x), 2 * x)
    torch.testing.assert_close(torch.vmap(watched.call)(x), (x * x).sum(1))
    assert watched.goes_fast(x)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * (self.scale if self.training else 1.0)


def doubled(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


def test_changes_of_a_module_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Layer(), torch.randn(4, 3)
    watched = Watched(module)

    def agrees(what: str, fast: bool | None = None) -> None:
        torch.testing.assert_close(watched(x), module(x), msg=what)
        assert fast is None or watched.goes_fast(x) == fast, what
        torch.testing.assert_close(watched(x), module(x), msg=what)

    agrees("as it was", fast=True)
    agrees("called again", fast=True)
    module.eval()
    agrees("eval", fast=True)
    module.train()
    module.scale = 3.0
    agrees("an attribute", fast=True)
    with torch.no_grad():
        module.weight.mul_(2)
    agrees("a parameter's elements", fast=True)
    module.weight = nn.Parameter(torch.randn(3))
    agrees("another parameter", fast=True)
    module.weight.requires_grad_(False)
    agrees("a frozen parameter", fast=True)
    handle = module.register_forward_hook(doubled)
    agrees("a hook", fast=False)
    handle.remove()
    agrees("no hook", fast=True)
    handle = nn.modules.module.register_module_forward_pre_hook(lambda module, args: (args[0] + 1,))
    with pytest.warns(UserWarning, match="global hooks"):
        assert not watched.goes_fast(x)
    handle.remove()
    agrees("no global hook", fast=True)
    module.forward = lambda x: x - 1
    agrees("a forward of its own", fast=False)
    del module.forward
    agrees("the class's forward", fast=True)
    monkeypatch.setattr(Layer, "forward", lambda self, x: x + self.weight)
    agrees("another forward of the class", fast=True)


def test_a_compiled_module_is_the_module_that_torch_makes() -> None:
    module = Layer()
    compiled = polytile.compile(module)
    assert isinstance(compiled, type(torch.compile(module)))
    assert compiled.weight is module.weight and [*compiled.state_dict()] == ["_orig_mod.weight"]
    handle = compiled.register_forward_hook(doubled)
    x = torch.randn(4, 3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), module(x) * 2)
    handle.remove()
    torch.testing.assert_close(compiled(x), module(x))


def test_a_module_s_call_is_its_forward_s_where_nothing_else_has_to_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    """So torch's wrapper, a context manager and two functions, is passed by; not where there are hooks, or jit traces."""
    compiled, x, entered = polytile.compile(Layer()), torch.randn(4, 3), []
    ordinary = nn.Module._wrapped_call_impl

    def watched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        entered.append(type(self))
        return ordinary(self, *args, **kwargs)

    expected = compiled(x)
    monkeypatch.setattr(torch._dynamo.OptimizedModule, "__call__", watched)
    torch.testing.assert_close(compiled(x), expected)
    assert entered == []
    handle = compiled.register_forward_pre_hook(lambda module, args: None)
    torch.testing.assert_close(compiled(x), expected)
    handle.remove()
    assert len(entered) == 1
    outer = torch.compile(nn.Sequential(compiled, nn.ReLU()), backend="eager", fullgraph=True)
    torch.testing.assert_close(outer(x), expected.relu())
    with torch.no_grad():
        compiled.weight.mul_(2)
    torch.testing.assert_close(outer(x), compiled(x).relu())


def test_parts_after_a_graph_break_are_compiled() -> None:
    def function(x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    watched, x = Watched(function), torch.randn(4)
    assert not watched.goes_fast(x) and watched.door.refusals == ("it has graph breaks",)
    assert torch.equal(watched(x), function(x))


def test_a_compiled_function_inside_another_is_part_of_its_graph() -> None:
    inner = Watched(lambda x: x + 1)
    outer = Watched(lambda x: inner.call(x) * 2, fullgraph=True)
    x = torch.randn(4)
    assert torch.equal(inner(x), x + 1)
    assert torch.equal(outer(x), (x + 1) * 2) and outer.goes_fast(x)


def test_modes_that_torch_compile_looks_at_are_noticed() -> None:
    watched, x = Watched(lambda x: (x + 1, torch.compiler.is_compiling())), torch.randn(4)
    assert watched.goes_fast(x) and watched(x)[1]
    with torch.compiler.set_stance("force_eager"):
        assert not watched(x)[1]
    assert watched(x)[1] and watched.goes_fast(x)
    with torch.profiler.profile() as profile:
        watched(x)
    assert any("Torch-Compiled Region" in event.name for event in profile.events())
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace"):
        torch.jit.trace(lambda x: watched(x)[0], (x,))


def test_errors_of_the_function_reach_the_caller_and_leave_the_door_open() -> None:
    watched = Watched(lambda x, index: torch.index_select(x, 0, index))
    x, index = torch.randn(4), torch.tensor([1, 2])
    assert watched.goes_fast(x, index)
    with pytest.raises(IndexError):
        watched(x, index + 9)
    assert watched.goes_fast(x, index) and torch.equal(watched(x, index), x[1:3])


def test_a_recursive_function_and_many_threads() -> None:
    def power(x: Tensor, times: int) -> Tensor:
        return x if times == 0 else calls[0](x, times - 1) * 2

    calls: list[Any] = [power]
    watched = Watched(power)
    calls[0] = watched.call
    inputs = [(torch.randn(size), times) for size in (3, 4, 5) for times in (1, 2)]
    wrong: list[str] = []

    def run() -> None:
        for _ in range(50):
            wrong.extend(f"{x.shape} {n}" for x, n in inputs if not torch.equal(watched(x, n), x * 2**n))

    for x, times in inputs:
        assert torch.equal(watched(x, times), x * 2**times)
    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_reset_of_dynamo_has_the_function_compiled_again() -> None:
    watched, x = Watched(lambda x: x + 1), torch.randn(4)
    assert watched.goes_fast(x)
    compiled = counters["graphs_compiled"]
    torch._dynamo.reset()
    assert watched.door.entry.managers == ()
    assert torch.equal(watched(x), x + 1) and counters["graphs_compiled"] == compiled + 1
    assert watched.goes_fast(x)


def test_nothing_is_kept_of_what_was_called() -> None:
    module, x, plain = Layer(), torch.randn(4, 3), Watched(lambda x: x + 1)
    compiled = Watched(module)
    compiled(x), compiled(x), plain(x), plain(x)
    gone = [weakref.ref(one) for one in (module, module.weight, compiled.call, compiled.door, x, plain.call, plain.door)]
    del module, compiled, plain, x
    gc.collect()
    assert [reference() for reference in gone] == [None] * len(gone)


def test_compiled_code_of_an_object_that_is_gone_runs_no_more() -> None:
    holder = [Layer()]
    watched, x = Watched(lambda x: holder[0](x)), torch.randn(4, 3)
    assert watched.goes_fast(x)
    holder[0] = Layer()
    gc.collect()
    torch.testing.assert_close(watched(x), holder[0](x))
    assert watched.goes_fast(x)


def test_the_check_finds_a_door_that_runs_other_code_than_dynamo() -> None:
    watched, x = Watched(lambda x: x + 1, mode="check"), torch.randn(4)
    for given in (x, x.double(), x, x[:2], x[:1]):
        assert torch.equal(watched(given), given + 1)
    assert len(watched.door.entry.managers) >= 2
    entry, function = watched.door.entry, watched.door.called_function()
    every = watched.door.entries()
    ways = [(weakref.ref(found.guard_manager), lambda values: True, None, function, None) for found in every]
    entry.replace(function, tuple(ways[1:]))
    with pytest.raises(FrontDoorError, match="front_door='off'"):
        watched(x[:1])


# polytile.compile ------------------------------------------------------------------------------------------------------


def test_the_option_off_leaves_what_torch_compile_made() -> None:
    assert not hasattr(polytile.compile(lambda x: x + 1, options={"front_door": "off"}), "polytile_front_door")


def test_c_calls_an_open_door_without_evaluating_its_frame() -> None:
    watched, x, seen = Watched(scaled), torch.randn(4, 3), set[types.CodeType]()
    assert watched.goes_fast(x, shift=x)
    call = functools.partial(watched.call, x, shift=x)
    sys.setprofile(lambda frame, event, given: seen.add(frame.f_code))
    try:
        result = call()
    finally:
        sys.setprofile(None)
    torch.testing.assert_close(result, scaled(x, shift=x))
    assert watched.call.__code__ not in seen
    before = len(watched.slow)
    torch.testing.assert_close(functools.partial(watched.call, by=3.0)(x=x.double()), x.double() * 3)
    assert len(watched.slow) == before + 1, "what the entry declines goes through Dynamo"


class Twice:
    def __call__(self, x: Tensor) -> Tensor:
        return x * 2


FRAMELESS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "builtin": (torch.bmm, ((2, 3, 4), (2, 4, 5))),
    "another builtin": (torch.mm, ((3, 4), (4, 5))),
    "partial": (functools.partial(torch.nn.functional.conv1d, stride=2), ((2, 3, 9), (4, 3, 2))),
    "function of torch": (torch.nn.functional.gelu, ((3, 5),)),
    "instance": (Twice(), ((3, 5),)),
}


@pytest.mark.parametrize("kind", FRAMELESS)
def test_a_callable_without_a_frame_of_its_own_has_a_front_door(kind: str) -> None:
    function, shapes = FRAMELESS[kind]
    native.module()
    compiled = polytile.compile(function)
    slow, inputs = watch(compiled), [torch.randn(shape) for shape in shapes]
    torch.testing.assert_close(compiled(*inputs), function(*inputs))
    before = len(slow)
    torch.testing.assert_close(compiled(*inputs), function(*inputs))
    assert len(slow) == before, "the second call goes around Dynamo"
    assert len(door_of(compiled).entries()) == 1, "its compiled code is not kept with that of others"


def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    x.add_(1)
    return x * 2, y.t(), torch.relu(y).sum(0), x.shape[0]


def test_mutations_aliases_and_gradients_are_those_of_eager() -> None:
    compiled = polytile.compile(mixed)
    slow = []
    for rows in (3, 4, 5):
        x, y = torch.randn(rows), torch.randn(rows, 2)
        own = x.clone()
        version = own._version
        results, expected = compiled(own, y), mixed(x, y)
        slow = slow or watch(compiled)
        torch.testing.assert_close(results, expected)
        torch.testing.assert_close(own, x)
        assert own._version > version and results[1]._base is y and results[1].data_ptr() == y.data_ptr()
    assert len(slow) <= 2
    y = torch.randn(4, 2, requires_grad=True)
    for _ in range(3):
        own = y.detach().clone().requires_grad_()
        compiled(torch.ones(4), own)[2].sum().backward()
        torch.testing.assert_close(own.grad, (y > 0).float())


def test_a_graph_without_mutations_or_aliases_gives_what_aotautograds_wrapper_gives() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, (x * y).sum()

    compiled, plain = polytile.compile(function), polytile.compile(function, options={"front_door": "off"})
    for rows in (3, 4, 5, 6):
        x, y = torch.randn(rows, 2), torch.randn(rows, 2).requires_grad_()
        with torch.no_grad():
            results, expected = compiled(x, y), function(x, y)
        torch.testing.assert_close(results, expected)
        assert torch.is_grad_enabled() and not any(result.requires_grad for result in results)
        assert [vars(result) for result in compiled(x, x)] == [vars(result) for result in plain(x, x)]
    assert [type(result) for result in compiled(x, x)] == [Tensor, Tensor]


def test_guards_that_are_left_out_are_not_asked() -> None:
    settings = {"triple": False}

    def function(x: Tensor, negate: bool = False) -> Tensor:
        return x * (3.0 if settings["triple"] else 2.0) * (-1 if negate else 1)

    x = torch.randn(4)
    every, tensors, none = (polytile.compile(function, guards=guards) for guards in ("all", "tensors", "none"))
    for compiled in (every, tensors, none):
        for size in (4, 5, 6):
            torch.testing.assert_close(compiled(torch.ones(size)), torch.full((size,), 2.0))
    settings["triple"] = True
    torch.testing.assert_close(every(x), x * 3)
    torch.testing.assert_close(tensors(x), x * 2)
    torch.testing.assert_close(none(x), x * 2)
    torch.testing.assert_close(tensors(x, True), x * -3)
    torch.testing.assert_close(tensors(x.double()), x.double() * 3)
    torch.testing.assert_close(none(x, True), x * 2)


def test_guards_name_the_argument_that_is_wrong() -> None:
    with pytest.raises(OptionError, match=r"guards='some' of polytile\.compile .* 'all' .* 'tensors' .* 'none'"):
        polytile.compile(lambda x: x, guards="some")


def test_two_modules_of_a_class_are_apart_without_guards() -> None:
    first, second = Layer(), Layer()
    second.scale = 7.0
    compiled = [polytile.compile(module, guards="none") for module in (first, second)]
    x = torch.randn(4, 3)
    for _ in range(2):
        for made, module in zip(compiled, (first, second), strict=True):
            torch.testing.assert_close(made(x), module(x))


def test_an_explanation_says_how_calls_find_their_code() -> None:
    def broken(x: Tensor) -> Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    direct, breaking, x = polytile.compile(lambda x: x + 1), polytile.compile(broken), torch.randn(4)
    direct(x), breaking(x)
    assert "front door: 1 compiled code(s)" in str(polytile.explain(direct, x))
    assert "through Dynamo, as it has graph breaks" in str(polytile.explain(breaking, x))


def test_the_background_begins_nothing_while_a_call_is_traced_that_an_open_door_has_declined() -> None:
    held: list[int] = []

    def traced(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        held.append(background.background._held)
        return as_traced(graph, inputs)

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    native.module()
    call = front_door.install(torch.compile(double, backend=traced, dynamic=True), double, traced, True, "on")
    for x in (torch.randn(3), torch.randn(3), torch.randn(3).double()):
        torch.testing.assert_close(call(x), x * 2)
    assert held == [0, 1] and background.background._held == 0


def test_the_background_goes_on_beside_declined_calls_that_dynamo_does_not_trace() -> None:
    held: list[int] = []

    def double(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            held.append(background.background._held)
        return x * 2

    native.module()
    call = polytile.compile(double, options={"race_eager": False})
    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=False):
        call(torch.randn(3))
        call(torch.randn(3))
        for _ in range(front_door.MOST_UNTRACED + 2):
            torch.testing.assert_close(call(torch.ones(3).double()), torch.full((3,), 2.0).double())
    assert held == [1] * front_door.MOST_UNTRACED + [0, 0]


def test_a_function_that_dynamo_compiles_nothing_of_is_not_prepared_for_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    expected: list[int] = []

    def skipped(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    monkeypatch.setattr(native, "is_ready", lambda: False)
    compiled = torch.compile(skipped, backend=as_traced, dynamic=True)
    call = front_door.install(compiled, skipped, as_traced, True, "on", expect=lambda values: expected.append(1))
    for _ in range(10):
        call(torch.randn(3))
    assert len(expected) <= front_door.MOST_UNTRACED


def test_a_plain_inference_graph_is_called_without_aotautograds_wrapper() -> None:
    native.module()
    made: list[Any] = []
    monkeypatched = inference.Inference.unwrapped

    def unwrapped(self: Any, wrapped: Any) -> Any:
        made.append(monkeypatched(self, wrapped))
        return made[-1]

    with pytest.MonkeyPatch.context() as patched, torch.no_grad():
        patched.setattr(inference.Inference, "unwrapped", unwrapped)
        polytile.compile(lambda x: x + 1, options={"stall": "tune"})(torch.randn(3, 5))
    assert [type(one).__name__ for one in made] == ["Graph"]
