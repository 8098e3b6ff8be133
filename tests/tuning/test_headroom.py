"""A device without memory to spare: measured in place, checked on the host, or later. The host stands in for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from polytile.problem import Outcome
from polytile.tuning import distance, gate, headroom
from polytile.tuning.clones import Clones, Lent
from polytile.tuning.headroom import HOST_SECONDS, HOST_SLOWER, NoHeadroom
from polytile.tuning.tune import tune
from tests.tuning import planted
from tests.tuning.planted import Function

SHORT, LONG = 1e-6, 2 * HOST_SECONDS / HOST_SLOWER
"""Predicted seconds of a problem whose reference the host may run, and of one too large for that."""


@pytest.fixture
def spare(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that may be allocated without raising the peak; none at first."""
    bytes_left = [0]
    monkeypatch.setitem(headroom.HEADROOM, "cpu", lambda device: bytes_left[0])
    return bytes_left


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[gate.Gate]]:
    """Every gate that is made."""
    made: list[gate.Gate] = []
    plain = gate.Gate.__init__

    def noting(self: gate.Gate, *args: Any, **more: Any) -> None:
        made.append(self)
        plain(self, *args, **more)

    monkeypatch.setattr(gate.Gate, "__init__", noting)
    yield made


def wrong(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    y.copy_(x * 2.01)


def task(predicted: float, *functions: Any, **more: Any) -> Any:
    made = planted.task(*(Function(f.__name__, f) for f in functions), isolated=frozenset(), **more)
    return dataclasses.replace(made, predicted=(predicted,) * len(functions))


def test_without_room_kernels_run_on_the_callers_memory_and_are_checked_on_the_host(
    spare: list[int], gates: list[gate.Gate]
) -> None:
    asked = task(SHORT, planted.double, wrong)
    right, bad = tune(asked)
    assert right.ok and right.measurement is not None and right.measurement.samples
    assert bad.measurement is not None and bad.measurement.outcome is Outcome.WRONG and "'y' is off by" in bad.detail
    (made,) = gates
    assert made._on_host and all(isinstance(block, Lent) for block in made.clones.blocks)


def test_what_kernels_change_in_place_is_put_back(spare: list[int]) -> None:
    def accumulates(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
        y.add_(x)

    asked = task(SHORT, accumulates, reference=accumulates, roles=("in", "inout"))
    (attempt,) = tune(asked)
    assert attempt.ok, attempt.detail
    assert bool((asked.args[1] == 5.0).all())


@pytest.mark.parametrize("shape", [(), (1,), (3, 4)])
def test_an_output_without_room_is_poisoned_where_it_lies(spare: list[int], shape: tuple[int, ...]) -> None:
    out = torch.zeros(shape)
    clones = Clones((torch.ones(shape), out), ("in", "out"))
    clones.poison()
    assert isinstance(clones.blocks[0], Lent) and bool(out.isnan().all())


def test_with_some_room_the_reference_runs_there_in_the_arguments_own_precision(
    spare: list[int], gates: list[gate.Gate]
) -> None:
    n = 1000
    spare[0] = headroom.OWN_TIMES * 2 * 4 * n + headroom.COMPARED_BYTES * n
    assert tune(task(LONG, planted.double, n=n))[0].ok
    spare[0] = headroom.WIDE_BYTES * 2 * n + headroom.COMPARED_BYTES * n
    assert tune(task(LONG, planted.double, n=n))[0].ok
    own, wide = gates
    assert (own._wide, own._on_host, wide._wide, wide._on_host) == (False, False, True, False)
    assert not any(isinstance(block, Lent) for block in wide.clones.blocks)


def test_a_large_problem_is_not_measured_without_room(spare: list[int]) -> None:
    asked = task(LONG, planted.double)
    with pytest.raises(NoHeadroom, match="more of the device's memory than it has to spare"):
        tune(asked)
    assert bool((asked.args[1] == 5.0).all())


def test_results_are_kept_on_the_host_to_compare_later_runs_with(spare: list[int]) -> None:
    copy = headroom.copy_of(torch.ones(4))
    assert torch.equal(copy, torch.ones(4)) and distance.bits_equal(torch.ones(4), copy)


def test_clones_that_fit_are_made_and_others_lent(spare: list[int]) -> None:
    spare[0] = 1000
    small, large = torch.zeros(8), torch.zeros(8000)
    blocks = Clones((small, large), ("out", "out")).blocks
    assert sorted(isinstance(block, Lent) for block in blocks) == [False, True]


def test_a_process_that_is_there_for_measuring_uses_what_is_free(
    spare: list[int], gates: list[gate.Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(headroom.FREE, "cpu", lambda device: 1 << 30)
    with headroom.for_measuring():
        assert tune(task(LONG, planted.double))[0].ok
    (made,) = gates
    assert made._wide and not made._on_host
    assert not headroom.fits(1, torch.device("cpu"))
