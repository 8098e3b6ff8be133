"""Races between candidates, by a clock that the tests turn."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from polytile.candidates.entries import PythonEntry
from polytile.runtime import cpu
from polytile.tuning import measure, racing
from polytile.tuning.limits import GPU_LIMITS, GPU_THOROUGH, LIMITS, SURE_ROUNDS, THOROUGH, Limits
from polytile.tuning.measure import Contender
from polytile.tuning.racing import race


@dataclass
class Machine:
    """A fake clock: each contender's calls take the seconds in `speeds`, plus noise."""

    speeds: dict[str, float]
    noise: float = 0.0
    now: float = 0.0
    waited: float = 0.0
    """Seconds for which other programs have had a core, so far."""
    calls: list[tuple[str, int]] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(0))

    def burst(self, contender: Contender, repeats: int) -> float:
        self.calls.append((contender.name, repeats))
        seconds = repeats * self.speeds[contender.name] * (1 + self.noise * self.random.random())
        self.now += seconds
        return seconds

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def count(self, name: str) -> int:
        return sum(called == name for called, _ in self.calls)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine({})
    monkeypatch.setattr(measure, "time_burst", made.burst)
    monkeypatch.setattr(racing, "clock", lambda: made.now)
    monkeypatch.setattr(racing, "_involuntary_switches", lambda: 0)
    monkeypatch.setattr(cpu, "waited", lambda: made.waited)
    monkeypatch.setattr(racing, "pause", made.pause)
    monkeypatch.setattr(measure, "replaced", lambda: False)
    monkeypatch.setattr(racing, "_crowded", racing._Crowded())
    yield made


def contenders(machine: Machine, **speeds: float) -> list[Contender]:
    machine.speeds = speeds
    return [Contender(name, PythonEntry(lambda: None), ()) for name in speeds]


def test_short_kernels_are_timed_in_bursts_and_long_ones_call_by_call(machine: Machine) -> None:
    short, long = race(contenders(machine, short=1e-6, long=2e-3))
    assert ("short", 100) in machine.calls
    assert all(repeats == 1 for name, repeats in machine.calls if name == "long")
    assert short.seconds == pytest.approx(1e-6) and long.seconds == pytest.approx(2e-3)


def turns(machine: Machine) -> list[str]:
    """Who ran, burst after burst, with neighbouring bursts of one contender as one; calibration and warming left out."""
    bursts = [name for name, repeats in machine.calls if repeats > 1]
    return [name for place, name in enumerate(bursts) if not place or bursts[place - 1] != name]


def test_candidates_take_turns(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "FINAL_BURSTS", 1)
    race(contenders(machine, a=1e-5, b=1e-5, c=1e-5), Limits())
    bursts = [name for name, repeats in machine.calls if repeats > 1]
    rounds = [bursts[i : i + 3] for i in range(0, len(bursts), 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len({tuple(turn) for turn in rounds}) == 3


def test_a_clear_loser_leaves_the_race_early_and_the_final_is_run_by_the_others(machine: Machine) -> None:
    best, close, slow = race(contenders(machine, best=1e-5, close=1.01e-5, slow=1.5e-5))
    assert len(slow.samples) == 5
    assert len(best.samples) == len(close.samples) >= 20
    assert slow.seconds == pytest.approx(1.5e-5)


def test_in_the_final_each_runs_a_few_bursts_on_end(machine: Machine) -> None:
    first, second = race(contenders(machine, a=1e-5, b=1e-5))
    bursts = [name for name, repeats in machine.calls if repeats > 1]
    assert "aaa" in "".join(bursts) and "bbb" in "".join(bursts)
    final = len(first.samples) + len(second.samples)
    assert len(bursts) - final == 2 * 5, "what was sampled before the final is not part of the times"


def test_long_kernels_settle_it_without_a_final(machine: Machine) -> None:
    race(contenders(machine, a=2e-3, b=2e-3))
    assert machine.count("a") <= 2 + 5


def test_a_choice_that_stays_open_is_measured_longer_up_to_a_limit(machine: Machine) -> None:
    race(contenders(machine, a=1e-5, b=1e-5))
    settled = machine.now
    machine.noise, machine.now = 0.2, 0.0
    race(contenders(machine, a=1.02e-5, b=1e-5))
    assert 2 * settled < machine.now < LIMITS.seconds + LIMITS.open_seconds + 0.005
    machine.now = 0.0
    race(contenders(machine, a=1.02e-5, b=1e-5), THOROUGH)
    assert machine.now > 4 * LIMITS.open_seconds


def test_noise_common_to_a_round_does_not_keep_a_race_open(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour that comes and goes slows every contender by half, some of the time."""
    plain = machine.burst
    monkeypatch.setattr(measure, "time_burst", lambda c, r: plain(c, r) * (1.5 if int(machine.now * 200) % 2 else 1.0))
    best, other = race(contenders(machine, best=1e-5, other=1.05e-5))
    assert len(other.samples) <= 10 and best.samples


def test_a_long_hopeless_candidate_is_called_once_and_no_more(machine: Machine) -> None:
    _, hopeless = race(contenders(machine, good=5e-3, hopeless=0.5))
    assert machine.count("hopeless") == 1
    assert hopeless.seconds == pytest.approx(0.5)


@pytest.fixture
def both(machine: Machine) -> list[Contender]:
    """A kernel on one thread and on two, which is faster where it has both cores."""
    return contenders(machine, **{"one thread": 25e-6, "two threads": 13e-6})


def busy_until(machine: Machine, end: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program has one of two cores until `end`: whoever uses both waits 7 ms for it, each time."""
    plain = machine.burst

    def burst(contender: Contender, repeats: int) -> float:
        if contender.name != "two threads" or machine.now >= end:
            return plain(contender, repeats)
        machine.now, machine.waited = machine.now + 7e-3, machine.waited + 7e-3
        return 7e-3 + plain(contender, repeats)

    monkeypatch.setattr(measure, "time_burst", burst)


def test_a_kernel_whose_first_calls_waited_for_a_core_is_not_given_up(
    machine: Machine, both: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_until(machine, 0.02, monkeypatch)
    one, two = race(both)
    assert len(two.samples) > 3 and two.seconds < 1.4e-5 < one.seconds


def test_a_kernel_that_is_slow_without_anybody_in_its_way_is_called_once_or_twice(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = contenders(machine, good=1e-5, hopeless=7e-3)
    machine.waited = 1.0
    race(both)
    assert machine.count("hopeless") == 2


def test_where_nobody_waits_a_disturbed_race_is_run_again_and_the_calmest_counts(
    machine: Machine, both: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_until(machine, 0.4, monkeypatch)
    one, two = race(both, THOROUGH)
    assert machine.now > 0.4 and two.seconds < 1.4e-5 < one.seconds
    busy_until(machine, 1e9, monkeypatch)
    started = machine.now
    one, two = race(both, THOROUGH)
    assert machine.now - started < 3 * (THOROUGH.seconds + THOROUGH.open_seconds) + 1.0, "it ends all the same"
    assert one.samples and two.samples


def test_where_a_call_waits_a_race_that_says_nothing_is_run_once_more_and_not_on_a_machine_that_stays_busy(
    machine: Machine, both: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_until(machine, 0.05, monkeypatch)
    one, two = race(both)
    assert two.seconds < 1.4e-5 < one.seconds
    busy_until(machine, 1e9, monkeypatch)
    runs, started = [], machine.now
    for _ in range(3):
        before = machine.count("one thread")
        race(both)
        runs.append(machine.count("one thread") - before)
    assert runs[0] > 1.5 * runs[1] and runs[1] == runs[2], "the second race of the first choice is the last one for a while"
    assert machine.now - started < 4 * (LIMITS.seconds + LIMITS.open_seconds) + LIMITS.pause_seconds + 0.1


def test_an_interrupt_in_a_second_race_keeps_what_the_first_has_found(
    machine: Machine, both: list[Contender], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_until(machine, 1e9, monkeypatch)
    busy = measure.time_burst

    def interrupted(contender: Contender, repeats: int) -> float:
        if machine.now > 2.0:
            raise KeyboardInterrupt
        return busy(contender, repeats)

    monkeypatch.setattr(measure, "time_burst", interrupted)
    monkeypatch.setattr(cpu, "waited", lambda: machine.now)
    with pytest.raises(racing.Stopped) as stopped:
        race(both, dataclasses.replace(THOROUGH, races=100))
    assert all(timing.samples for timing in stopped.value.timings)


def test_cheap_problems_take_a_few_tens_of_milliseconds(machine: Machine) -> None:
    race(contenders(machine, a=1e-5, b=1e-5, c=1e-5, d=1e-5))
    assert machine.now < 0.06
    machine.now = 0.0
    race(contenders(machine, a=1e-3, b=1e-3, c=1e-3, d=1e-3))
    assert machine.now < 0.06


def test_dear_problems_end_after_the_longest_time_with_a_sample_each(machine: Machine) -> None:
    timings = race(contenders(machine, a=2.0, b=2.0, c=2.0))
    assert machine.now <= 6.0
    assert all(timing.samples for timing in timings)
    machine.now = 0.0
    timings = race(contenders(machine, a=0.5, b=0.5, c=0.5, d=0.5))
    assert machine.now < 4.0
    assert all(timing.samples for timing in timings)


def test_noise_comes_with_the_time(machine: Machine) -> None:
    machine.noise = 0.3
    (timing,) = race(contenders(machine, a=1e-5))
    assert 1e-5 < timing.seconds < 1.15e-5
    assert 0.005 < timing.noise < 0.2


def test_bursts_that_the_scheduler_broke_are_taken_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    switches = iter(range(10_000))
    broken = [False]

    def counter() -> int:
        return next(switches) if broken[0] else 0

    plain = machine.burst

    def sometimes_broken(contender: Contender, repeats: int) -> float:
        broken[0] = repeats > 1 and len(machine.calls) % 4 == 0
        return plain(contender, repeats) * (50 if broken[0] else 1)

    monkeypatch.setattr(measure, "time_burst", sometimes_broken)
    monkeypatch.setattr(racing, "_involuntary_switches", counter)
    (timing,) = race(contenders(machine, a=1e-5))
    assert timing.samples and max(timing.samples) < 2e-5


def test_on_a_machine_that_is_always_busy_there_are_samples_all_the_same(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    switches = iter(range(100_000))
    monkeypatch.setattr(racing, "_involuntary_switches", lambda: next(switches))
    timings = race(contenders(machine, a=1e-5, b=1e-5))
    assert all(len(timing.samples) >= 10 for timing in timings)


def test_a_candidate_that_raises_leaves_the_race_and_the_others_go_on(machine: Machine) -> None:
    plain, calls = machine.burst, [0]

    def burst(contender: Contender, repeats: int) -> float:
        calls[0] += contender.name == "bad"
        if contender.name == "bad" and calls[0] > 6:
            raise RuntimeError("out of memory")
        return plain(contender, repeats)

    measure.time_burst = burst  # undone by the fixture
    bad, good = race(contenders(machine, bad=1e-5, good=1.01e-5))
    assert isinstance(bad.error, RuntimeError)
    assert len(good.samples) >= 5 and good.error is None


def test_an_interrupt_ends_the_race(machine: Machine) -> None:
    def interrupted(contender: Contender, repeats: int) -> float:
        raise KeyboardInterrupt

    measure.time_burst = interrupted
    with pytest.raises(KeyboardInterrupt):
        race(contenders(machine, a=1e-5))


def test_arguments_are_put_back_before_every_burst(machine: Machine) -> None:
    restored = [0]
    (contender,) = contenders(machine, a=1e-5)
    race([Contender("a", contender.entry, (), lambda: restored.__setitem__(0, restored[0] + 1))], Limits(rounds=5))
    assert restored[0] == 2 + 5


def test_real_kernels_are_timed_by_the_launcher() -> None:
    x, y = torch.randn(64, 64), torch.zeros(64, 64)
    fast = Contender("fast", PythonEntry(lambda x, y: y.copy_(x)), (x, y))
    slow = Contender("slow", PythonEntry(lambda x, y: y.copy_(torch.linalg.inv(x @ x))), (x, y))
    first, second = race([slow, fast])
    assert first.seconds > second.seconds > 0


@pytest.fixture
def gpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A GPU: a burst begins with 2 µs for the graph; a single call is launched by the host, which takes as long as it likes."""
    plain = machine.burst

    def burst(contender: Contender, repeats: int) -> float:
        begun = plain(contender, repeats) + 2e-6
        return begun + 200e-6 if repeats == 1 and contender.name == "library" else begun

    monkeypatch.setattr(measure, "time_burst", burst)
    return machine


def test_on_a_gpu_what_the_host_takes_to_launch_one_call_does_not_make_a_kernel_long(gpu: Machine) -> None:
    library, generated = race(contenders(gpu, library=8e-6, generated=9e-6), GPU_LIMITS)
    assert library.seconds == pytest.approx(8e-6, rel=0.05) and library.seconds < generated.seconds


def test_on_a_gpu_contenders_of_about_the_same_length_make_bursts_of_as_many_calls(gpu: Machine) -> None:
    race(contenders(gpu, a=5e-6, b=8e-6, c=19e-6, far=200e-6), GPU_LIMITS)
    most = {name: max(repeats for called, repeats in gpu.calls if called == name) for name in gpu.speeds}
    assert most["a"] == most["b"] == most["c"] == 36 and most["far"] == 4


def test_on_a_gpu_a_kernel_longer_than_a_burst_is_called_once(gpu: Machine) -> None:
    race(contenders(gpu, short=5e-3, long=6e-3), GPU_LIMITS)
    assert {repeats for _, repeats in gpu.calls[4:]} == {1}


def test_on_a_gpu_an_open_thorough_race_keeps_what_another_recording_may_find_faster(gpu: Machine) -> None:
    gpu.noise = 0.01
    some = contenders(gpu, edge=1.02e-5, best=1e-5, close=1.08e-5, slow=1.5e-5)
    edge, best, close, slow = race(some, GPU_THOROUGH)
    assert len(edge.samples) == len(best.samples) == len(close.samples) > 5 == len(slow.samples)
    *_, close, slow = race(some, dataclasses.replace(GPU_THOROUGH, clear=0.0))
    assert len(close.samples) == 5 == len(slow.samples)


def test_of_long_kernels_between_which_the_choice_is_open_enough_bursts_are_taken(machine: Machine) -> None:
    machine.noise = 0.3
    race(contenders(machine, one=8e-3, other=8.3e-3))
    assert min(machine.count("one"), machine.count("other")) > SURE_ROUNDS + LIMITS.open_rounds
    machine.noise, machine.calls = 0.0, []
    race(contenders(machine, one=8e-3, other=9.3e-3))
    assert machine.count("one") <= SURE_ROUNDS + 2, "the choice is clear"
