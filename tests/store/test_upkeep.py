"""Looking after a store: is it sound, and what in it can never be used again."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from polytile.errors import StoreError
from polytile.problem import Measurement, Outcome
from polytile.store import Store, check, cleanup
from polytile.store.reading import Record, records
from polytile.store.transfer import add
from tests.store.helpers import ENVIRONMENT

Make = Callable[..., Measurement]
PRESENT = dict(ENVIRONMENT)
DAY = 86400.0
NOW = 100 * DAY


def kept(path: Path, *found: tuple[float, Measurement]) -> Path:
    """A store of (taken at, measurement)."""
    add([Record(f"uid{number}", taken_at, m) for number, (taken_at, m) in enumerate(found)], path)
    return path


def test_a_sound_store_is_counted_and_has_no_troubles(tmp_path: Path, measurement: Make) -> None:
    wrong = measurement(2, outcome=Outcome.WRONG)
    path = kept(tmp_path / "s", (DAY, measurement(1)), (2 * DAY, measurement(2)), (3 * DAY, wrong))
    (tmp_path / "s.2.bad").write_bytes(b"")
    health = check.check(path)
    assert not health.troubles and health.set_aside == (tmp_path / "s.2.bad",)
    assert dict(health.counts) == {"measurements": 3, "problems": 2, "kernels": 1, "devices": 1, "environments": 1}
    assert dict(health.outcomes) == {"ok": 2, "wrong result": 1}
    assert (health.oldest, health.newest) == (DAY, 3 * DAY)


def edited(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER measurements_stay")
        for statement in statements:
            connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    "statement, trouble",
    [
        ("UPDATE measurements SET seconds = seconds / 2", "has a seconds that does not follow from the rest"),
        ("UPDATE measurements SET samples = '['", "measurement uid0 cannot be read"),
        ("UPDATE problems SET sizes = '[[\"M\",9]]'", "has a problem that does not follow"),
        ("DELETE FROM environments", "1 measurements lack their problem or environment"),
    ],
)
def test_an_edited_store_is_found_out(tmp_path: Path, measurement: Make, statement: str, trouble: str) -> None:
    path = kept(tmp_path / "s", (0.0, measurement(1)))
    edited(path, statement)
    assert any(trouble in text for text in check.check(path).troubles)


def test_a_damaged_page_is_found_out_and_the_file_left_alone(tmp_path: Path, measurement: Make) -> None:
    path = kept(tmp_path / "s", *[(float(m), measurement(m)) for m in range(200)])
    content = bytearray(path.read_bytes())
    content[8 * 4096 : 10 * 4096] = b"\xff" * 8192
    path.write_bytes(content)
    assert check.check(path).troubles
    assert path.read_bytes() == content


def test_a_missing_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no measurement store"):
        check.check(tmp_path / "none")


def test_nothing_can_go_from_a_store_of_this_software(tmp_path: Path, measurement: Make) -> None:
    path = kept(tmp_path / "s", (0.0, measurement(1)), (1.0, measurement(1, "other")), (2.0, measurement(2)))
    assert cleanup.stale(path, [PRESENT], NOW) == []


def test_a_superseded_source_can_go_and_the_newest_stays(tmp_path: Path, measurement: Make) -> None:
    new = [dataclasses.replace(measurement(m), source_hash="new") for m in (1, 3)]
    path = kept(tmp_path / "s", (0.0, measurement(1)), (1.0, measurement(2)), (2.0, new[0]), (3.0, new[1]))
    (found,) = cleanup.stale(path, [PRESENT], NOW)
    assert len(found.ids) == 2 and found.what.startswith("looped t1 of loop k0") and "source has changed" in found.why
    assert cleanup.remove(path, [found]) == 2
    assert [record.measurement.source_hash for record in records(path)] == ["new", "new"]
    assert not check.check(path).troubles
    assert check.check(path).counts["problems"] == 2


def test_another_environment_keeps_its_own_sources(tmp_path: Path, measurement: Make) -> None:
    elsewhere = dataclasses.replace(measurement(1), source_hash="new", environment=(("torch", "2.13.0"), ("x", "1")))
    path = kept(tmp_path / "s", (0.0, measurement(1)), (1.0, elsewhere))
    assert cleanup.stale(path, [PRESENT], 1.0) == []


def test_an_environment_without_its_software_goes_after_a_while(tmp_path: Path, measurement: Make) -> None:
    old = dataclasses.replace(measurement(1), environment=(("compiler", "g++ 12"), ("torch", "2.11.0")))
    path = kept(tmp_path / "s", (50 * DAY, old), (99 * DAY, measurement(1)))
    assert cleanup.stale(path, [PRESENT], 60 * DAY) == []
    (found,) = cleanup.stale(path, [PRESENT], NOW)
    assert found.what == "torch 2.11.0" and found.why == "this software is not here any more"
    assert len(records(path)) == 2, "looking changes nothing"
    assert cleanup.remove(path, [found]) == 1
    assert [record.measurement.environment for record in records(path)] == [ENVIRONMENT]
    assert check.check(path).counts["environments"] == 1


def test_an_environment_of_gpus_is_compared_with_that_of_gpus(tmp_path: Path, measurement: Make) -> None:
    driver, older = (("driver", "570"), ("torch", "2.13.0"), ("triton", "3.6")), (("driver", "560"), ("torch", "2.13.0"))
    found = [dataclasses.replace(measurement(m), environment=facts) for m, facts in enumerate((driver, older, ENVIRONMENT))]
    path = kept(tmp_path / "s", *((DAY, m) for m in found))
    assert cleanup.stale(path, [PRESENT], NOW) == [], "where there is no GPU nothing can tell"
    (gone,) = cleanup.stale(path, [PRESENT, dict(driver)], NOW)
    assert gone.what == "triton unknown, driver 560" and gone.ids == (2,)


def test_other_devices_and_thread_settings_are_kept(tmp_path: Path, measurement: Make) -> None:
    here = measurement(1)
    device = dataclasses.replace(here, problem=dataclasses.replace(here.problem, device="another"))
    threads = dataclasses.replace(here, environment=(*ENVIRONMENT, ("OMP_WAIT_POLICY", "active")))
    path = kept(tmp_path / "s", (0.0, device), (1.0, threads), (2.0, here))
    assert cleanup.stale(path, [PRESENT], NOW) == []


def test_a_running_program_misses_nothing_that_is_added_after_a_removal(tmp_path: Path, measurement: Make) -> None:
    """SQLite gives a removed last row's number to the next one; a reader that goes on from there would not see it."""
    new = dataclasses.replace(measurement(1), source_hash="new")
    path = kept(
        tmp_path / "s", (1.0, measurement(1)), (9.0, new), (2.0, measurement(2))
    )  # the last row came by a merge
    running = Store(path)
    assert len(running.exact(new.problem, ENVIRONMENT)) == 2
    assert cleanup.remove(path, cleanup.stale(path, [PRESENT], NOW)) == 1
    add([Record("later", 10.0, measurement(7))], path)
    assert running.refresh() == 1 and running.exact(measurement(7).problem, ENVIRONMENT)
