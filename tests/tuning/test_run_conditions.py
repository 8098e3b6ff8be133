"""What is kept of a measurement besides its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
import torch

from polytile import store
from polytile.dispatch.multikernel import MultiKernel
from polytile.problem import Resources, Scalar
from polytile.runtime import cpu, device
from polytile.runtime.cuda import clocks
from polytile.tuning.run_conditions import machine_state, with_run_conditions
from tests.dispatch.helpers import SPEC, Fake, arguments
from tests.store.helpers import make

CPU = torch.device("cpu")


@pytest.mark.usefixtures("empty_cache")
def test_what_a_program_measures_says_where_from_what_was_expected_and_on_what() -> None:
    store.forget()
    kernel = MultiKernel(dataclasses.replace(SPEC, device=""), [Fake("a", 1e-5, predicted=3e-5), Fake("b", 2e-5, predicted=3e-5)])
    kernel(*arguments(32))
    (a, b) = store.current().measurements()
    for m in (a, b):
        assert m.origin and m.predicted == 3e-5 and "load" in dict(m.state) and m.samples
        assert dict(m.machine)["model"] == cpu.cpu().model and dict(m.machine)["torch"] == torch.__version__
    store.forget()


def test_a_candidates_resources_are_kept_where_its_compiler_tells_them() -> None:
    class Reporting(Fake):
        resources = Resources(64, 0, 1024)

    assert with_run_conditions(make(), Reporting("reporting"), 1e-5, ()).resources == Resources(64, 0, 1024)
    assert with_run_conditions(make(), Fake("silent"), 1e-5, ()).resources == Resources()


def test_what_a_candidate_is_at_the_measured_sizes_is_on_record() -> None:
    class Describing(Fake):
        def describe(self, sizes: Mapping[str, int]) -> dict[str, Scalar]:
            return {"algorithm": f"for {sizes['M']}"}

    measured = make()
    state = dict(with_run_conditions(measured, Describing("describing"), 1e-5, (("load", 1.0),)).state)
    assert state == {"load": 1.0, "algorithm": f"for {measured.problem.size['M']}"}


def test_what_the_measurement_says_itself_stays() -> None:
    own = dataclasses.replace(make(), origin="mine", state=(("load", 9.0),), machine=(("model", "Z80"),))
    done = with_run_conditions(own, Fake("other"), 1e-5, (("load", 1.0), ("mhz", 2450.0)))
    assert (done.origin, done.machine, done.state) == ("mine", own.machine, (("load", 9.0), ("mhz", 2450.0)))


def test_a_gpus_clocks_are_asked_for_where_it_is_the_gpu_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "clocks", lambda index: {"mhz": 1755.0, "celsius": 40.0 + index})
    assert dict(machine_state(torch.device("cuda", 1))).items() >= {"mhz": 1755.0, "celsius": 41.0}.items()
    assert "celsius" not in dict(machine_state(CPU))


def test_a_fingerprint_of_another_machine_stands_for_nothing_here() -> None:
    assert device.described("cpu-of-somebody-else") == ()
