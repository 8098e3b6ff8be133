"""A config that crashes or hangs does so in a worker: the user's process chooses among the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from polytile.problem import Outcome
from polytile.store.reading import records
from polytile.tuning.isolation.worker import stop_all
from tests.autotuner import planted
from tests.autotuner.processes import run_compiling

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles where there is a GPU; these run interpreted.")


@pytest.fixture(autouse=True)
def fresh(empty_cache: Path) -> Iterator[None]:
    yield
    stop_all()


@pytest.mark.parametrize(("name", "outcome"), [("crashing", Outcome.CRASHED), ("hanging", Outcome.TIMEOUT)])
def test_a_config_that_ends_its_process_or_has_no_end_is_a_measurement(name: str, outcome: Outcome, empty_cache: Path) -> None:
    kernel = getattr(planted, name)
    planted.call(kernel)
    planted.call(kernel, 1000)
    outcomes = [one.measurement.outcome for one in records(empty_cache / "store.sqlite3")]
    assert [one for one in outcomes if one is not Outcome.OK] == [outcome], "once, and on record for larger sizes"
    assert outcomes.count(Outcome.OK) > 3


def test_machine_code_runs_in_a_worker_with_the_arguments_of_the_call(tmp_path: Path) -> None:
    done = run_compiling("tests.autotuner.machine_code", tmp_path)
    assert len(done.stdout.splitlines()) == 4 and "illegal memory access" in done.stderr
