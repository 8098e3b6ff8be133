"""Calls run eager's own code where that is faster than what was compiled."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polytile
from polytile.compiler import frames, front_door, races
from polytile.counters import counters
from polytile.dispatch import learning
from polytile.runtime import native

ENOUGH = 256 + 2 * races.MOST_TURNS + 2 * races.TURNS
"""Calls after which a race is over."""


@pytest.fixture(autouse=True)
def no_other_kernels_are_chosen() -> None:
    """Those of other tests would put races off."""
    assert polytile.wait(timeout=120)


class Compiled:
    """A function behind a front door that may race. Each call of compiled code takes `seconds` more, and is counted. `fused` does
    what the graph does to its last argument."""

    def __init__(self, function: Any, seconds: float = 0.0, fused: Callable[[Tensor], Tensor] | None = None) -> None:
        self.seconds, self.calls, self.fused = seconds, 0, fused
        native.module()  # no call waits for the launcher, and the door opens once that is there
        compile_ = functools.partial(torch.compile, backend=self.backend, dynamic=True)
        compiled = frames.compile_in_own_frame(compile_, function)
        self.call = front_door.install(compiled, function, self.backend, True, "on", True)

    def backend(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            self.calls += 1
            time.sleep(self.seconds)
            return graph.forward(*args) if self.fused is None else (self.fused(args[-1]),)

        counters.add("graphs_compiled")
        return run

    def serves(self, *args: Any) -> bool:
        """Whether compiled code serves a call, after many."""
        for _ in range(ENOUGH):
            self.call(*args)
        before = self.calls
        self.call(*args)
        return self.calls > before


def plus_one(x: Tensor) -> Tensor:
    return x + 1


class PlusOne(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def plus_many(x: Tensor) -> Tensor:
    for _ in range(50):
        x = x + 1
    return x


@pytest.mark.parametrize("function", [plus_one, PlusOne(), functools.partial(plus_one)], ids=["function", "module", "partial"])
def test_what_eager_does_faster_it_does_itself(function: Any) -> None:
    made = Compiled(function, seconds=1e-4)
    x = torch.randn(3, 5)
    assert not made.serves(x)
    torch.testing.assert_close(made.call(x), x + 1)
    torch.testing.assert_close(made.call(x=x), x + 1)
    assert "calls of 1 size(s) are eager's own" in str(front_door.door_of(made.call))
    made.call(torch.randn(3, 4))
    before = made.calls
    made.call(x.expand(1000, 3, 5)[:, 0])
    assert made.calls == before + 1, "other sizes have a race of their own"
    made.call(x.double())
    made.call(x.double())
    before = made.calls
    made.call(x)
    assert made.calls == before + 1, "once more is compiled, all are counted anew"


def test_what_compiled_code_does_faster_it_goes_on_doing() -> None:
    made = Compiled(plus_many, fused=lambda x: x + 50)
    assert made.serves(torch.randn(4, 4))
    assert "eager's own" not in str(front_door.door_of(made.call))


def test_a_race_that_cannot_be_won_ends_early() -> None:
    race = races.Race(compiled=[10, 12, 11, 10], function=[16, 17, 18])
    assert race.function_is_faster() is None
    race.function.append(17)
    assert race.function_is_faster() is False
    level = races.Race([10] * races.MOST_TURNS, [10] * races.MOST_TURNS)
    assert level.function_is_faster() is False
    assert races.Race([10] * races.TURNS, [9] * races.TURNS).function_is_faster() is True


def test_a_close_race_goes_on() -> None:
    close = races.Race([100] * races.TURNS, [98] * races.TURNS)
    assert close.function_is_faster() is None
    more = races.MOST_TURNS - races.TURNS
    close.compiled += [100] * more
    close.function += [98] * more
    assert close.function_is_faster() is True


def test_first_calls_and_disturbances_decide_no_race() -> None:
    cold = races.Race([10] * 4, [30_000, 40_000, 8, 8])
    assert cold.function_is_faster() is None, "the first calls of the function start its threads"
    disturbed = races.Race([10] * races.TURNS, [8] * 4 + [50] * (races.TURNS - 4))
    assert disturbed.function_is_faster() is True, "most of the function's calls met another process"


def test_calls_that_need_gradients_are_not_raced() -> None:
    made = Compiled(plus_one, seconds=1e-4)
    x = torch.randn(3, 5, requires_grad=True)
    assert made.serves(x)


def test_there_is_no_race_while_kernels_are_still_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = Compiled(plus_one, seconds=1e-4), torch.randn(3, 5)
    with monkeypatch.context() as patched:
        patched.setattr(learning, "is_settled", lambda: False)
        assert made.serves(x) and made.serves(x)
    for _ in range(32 + 2 * races.MOST_TURNS):
        made.call(x)
    before = made.calls
    made.call(x)
    assert made.calls == before, "the race begins soon after they are chosen"


@pytest.mark.parametrize("given", [{"race_eager": False}, {"tune": "off"}, {"stall": "compile"}], ids=str)
def test_options_that_fix_what_runs(given: dict[str, Any]) -> None:
    call = polytile.compile(plus_one, options=given)
    call(torch.randn(3, 5))
    assert front_door.door_of(call).races is None


def broken(x: Tensor) -> Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


class Cell(nn.Module):
    """Dynamo leaves the frame of a recurrent layer to Python."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.RNN(5, 3)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)


def test_a_function_with_graph_breaks_is_left_to_eager_where_that_is_faster() -> None:
    made, x = Compiled(broken, seconds=1e-4), torch.randn(3, 5)
    assert not made.serves(x)
    torch.testing.assert_close(made.call(x), (x + 1) * 2)
    assert "calls of 1 size(s) are eager's own" in str(front_door.door_of(made.call))


def test_a_function_that_dynamo_compiles_nothing_of_is_called_itself() -> None:
    module, x = Cell(), torch.randn(4, 2, 5)
    native.module()
    call = polytile.compile(module, options={"stall": "tune"})
    with torch.no_grad():
        for _ in range(ENOUGH):
            call(x)
        torch.testing.assert_close(call(x), module(x))
        assert "calls of 1 size(s) are eager's own" in str(front_door.door_of(call))


def test_generators_are_not_raced() -> None:
    def rows(x: Tensor) -> Any:
        yield from x

    native.module()
    call, x = polytile.compile(rows), torch.randn(3, 5)
    for _ in range(ENOUGH):
        call(x)
    door = front_door.door_of(call)
    assert door.races is None or door.races.won == 0


class Clock:
    """A GPU whose calls take their `length`, and which has finished those of which it is asked after `until`."""

    def __init__(self) -> None:
        self.now, self.until = 0.0, 0.0

    def event(self, enable_timing: bool) -> Any:
        clock = self

        class Event:
            def record(self, stream: Any) -> None:
                assert stream == "stream"
                self.at = clock.now

            def query(self) -> bool:
                return self.at <= clock.until

            def elapsed_time(self, end: Any) -> float:
                return end.at - self.at

        return Event()

    def call(self, milliseconds: float) -> str:
        self.now += milliseconds
        return "result"


def test_calls_on_a_gpu_are_timed_by_events_that_are_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(torch.cuda, "Event", clock.event)
    race, clock.until = races.StreamRace(stream="stream"), -1.0  # the GPU is behind
    for turn in range(races.TURNS):
        for times, length in ((race.compiled, 3.0), (race.function, 2.0)):
            assert race.turn_of_function == (times is race.function)
            assert race.timed(times, lambda length=length: clock.call(length)) == "result"
        assert race.function_is_faster() is None, f"none of {turn + 1} turns has been read"
    clock.until = clock.now
    assert race.function_is_faster() is True
    assert race.function == [2e6] * races.TURNS and race.compiled == [3e6] * races.TURNS


def test_where_a_gpu_waits_for_the_host_the_host_s_time_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, host = Clock(), [0]
    monkeypatch.setattr(torch.cuda, "Event", clock.event)
    monkeypatch.setattr(races, "perf_counter_ns", lambda: host[0])
    race = races.StreamRace(stream="stream")

    def call(milliseconds: float, host_ns: int) -> None:
        host[0] += host_ns
        clock.call(milliseconds)

    for _ in range(races.TURNS):
        for times, milliseconds, host_ns in ((race.compiled, 3.0, 2_000_000), (race.function, 3.2, 1_000_000)):
            clock.until = clock.now  # the GPU has begun each call before the host is done with it
            race.timed(times, functools.partial(call, milliseconds, host_ns))
    clock.until = clock.now
    assert race.function_is_faster() is True
    assert race.function == pytest.approx([2.1e6] * races.TURNS) and race.compiled == pytest.approx([2.5e6] * races.TURNS)
