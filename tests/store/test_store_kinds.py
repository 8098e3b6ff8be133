"""A file and a server do the same: what is promised of a store holds wherever it is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from polytile.facts import Threads
from polytile.problem import Config, Measurement, Outcome, Resources
from polytile.store import Store, check, cleanup, kernel_tuner, transfer
from polytile.store.place import Place, Server
from polytile.store.reading import Record, records
from polytile.store.records import GATE
from polytile.tuning.decide import combine
from tests.store.helpers import ENVIRONMENT

Make = Callable[..., Measurement]
Places = Callable[[], Place]


def filled(place: Place, *measurements: Measurement) -> Place:
    store = Store(place)
    store.append(*measurements)
    store.close()
    return place


def everything(make: Make) -> Measurement:
    """A measurement in which every field says something, some of it hard to store."""
    whole = dataclasses.replace(
        make(),
        samples=(1e-05, 0.1 + 0.2, 5e-324, 1.7976931348623157e300),
        detail='"quotes", \\ and\nlines, %s, :name, é, 漢',
        condition="cold cache",
        config=Config.of({"M": 4096}, threads=1, form="a'b", fast=True, ratio=0.1),
        origin="cpp",
        predicted=2e-5,
        resources=Resources(64, 16, 49152),
        state=(("governor", "performance"), ("load", 0.25), ("mhz", 2450.5), ("odd", "inf")),
        machine=(("isa", "avx512"), ("model", "A processor")),
    )
    return dataclasses.replace(whole, max_error=float("inf"))


def test_every_field_of_a_measurement_comes_back_as_it_was(place: Place, measurement: Make) -> None:
    given = [everything(measurement), measurement(2, outcome=Outcome.CRASHED)]
    filled(place, *given)
    found = Store(place).measurements()
    assert found == given and repr(found) == repr(given)
    assert found[0].machine == given[0].machine and all(type(sample) is float for sample in found[0].samples)


def test_text_that_no_database_takes_is_stored_without_what_is_wrong_with_it(place: Place, measurement: Make) -> None:
    filled(place, dataclasses.replace(measurement(), detail="a\0b \udc80c"))
    assert Store(place).measurements()[0].detail == "a\N{REPLACEMENT CHARACTER}b ?c"


def test_lookups_find_this_problem_its_relatives_and_nothing_else(place: Place, measurement: Make) -> None:
    filled(place, measurement(64), measurement(64, "aten"), measurement(128))
    store = Store(place)
    wanted = measurement(64)
    assert [s.who[0] for s in store.exact(wanted.problem, wanted.environment)] == ["looped t1", "aten"]
    ((sizes, summaries),) = store.nearby(wanted.problem, wanted.environment)
    assert sizes == {"M": 128, "N": 512} and summaries[0].seconds == pytest.approx(1e-5, rel=0.01)
    assert not store.exact(wanted.problem, (("torch", "2.12.0"),))
    assert not store.exact(dataclasses.replace(wanted.problem, device="cpu-y"), wanted.environment)


def test_every_part_of_the_key_keeps_measurements_apart(place: Place, measurement: Make) -> None:
    """What can change the winner: source, hint, config, sizes, types, layouts and threads, device, software."""
    here = measurement()

    def problem(**changes: object) -> Measurement:
        return dataclasses.replace(here, problem=dataclasses.replace(here.problem, **changes))

    others = [
        problem(family="mm"), problem(kernel="k1"), problem(sizes=(("M", 65), ("N", 512))), problem(dtypes=("float64",)),
        problem(layouts=(Threads(4),)), problem(device="cpu-y"),
        *(dataclasses.replace(here, environment=(*ENVIRONMENT, fact))
          for fact in (("flags", "-O3"), ("OMP_WAIT_POLICY", "active"), ("driver", "570"))),
        dataclasses.replace(here, environment=(("compiler", "g++ 13"), ("torch", "2.13.0"))),
    ]  # fmt: skip
    filled(place, here, *others)
    store = Store(place)
    for one in (here, *others):
        assert len(store.exact(one.problem, one.environment)) == 1, one
    for change in ({"candidate": "x"}, {"config": Config.of({"M": 65}, threads=1)}, {"source_hash": "x"}):
        filled(place, dataclasses.replace(here, **change))
    assert len({s.who for s in Store(place).exact(here.problem, here.environment)}) == 4


def test_a_program_reads_what_others_add_when_it_asks_again(place: Place, measurement: Make) -> None:
    mine, other = Store(place), Store(place)
    assert not mine.exact(measurement().problem, ENVIRONMENT)
    other.append(measurement(), measurement(2))
    assert not mine.exact(measurement().problem, ENVIRONMENT)
    assert mine.refresh() == 2 and mine.refresh() == 0
    assert mine.exact(measurement().problem, ENVIRONMENT)


def test_the_view_of_decisions_follows_the_rules_of_choosing(place: Place, measurement: Make) -> None:
    """A wrong result is final, the newest says whether it runs, the lower median counts."""
    wrong = dataclasses.replace(measurement(candidate="wrong", outcome=Outcome.WRONG), state=(GATE,))
    crashed = measurement(candidate="crashed", outcome=Outcome.CRASHED)
    filled(
        place, wrong, measurement(candidate="wrong", seconds=1e-6), measurement(candidate="crashed", seconds=1e-6), crashed,
        *(measurement(candidate="steady", seconds=s) for s in (3e-5, 3e-5, 3e-5)),
        *(measurement(candidate="lucky once", seconds=s) for s in (4e-5, 4e-5, 1e-6)),
    )  # fmt: skip
    question = "SELECT family, candidate, seconds FROM decisions"
    ((family, candidate, seconds),) = _asked(place, question)
    assert (family, candidate) == ("loop", "steady") and seconds == pytest.approx(3e-5, rel=0.01)


def test_a_verdict_by_earlier_rules_of_the_gate_counts_for_nothing(place: Place, measurement: Make) -> None:
    """Neither one without a mark, as older stores have it and other tuners write it, nor one with another version's."""
    wrong = measurement(outcome=Outcome.WRONG)
    filled(place, wrong, dataclasses.replace(wrong, state=(("gate", 1),)), measurement())
    for verdict, counts in ((), False), ((dataclasses.replace(wrong, state=(GATE,)),), True):
        filled(place, *verdict)
        (score,) = combine(Store(place).exact(wrong.problem, ENVIRONMENT)).values()
        assert score.ok is not counts
        assert len(_asked(place, "SELECT candidate FROM decisions")) == (not counts)


def test_the_view_of_candidates_says_who_they_are_and_what_they_need(place: Place, measurement: Make) -> None:
    changed = dataclasses.replace(everything(measurement), source_hash="new")
    filled(place, everything(measurement), dataclasses.replace(everything(measurement), outcome=Outcome.CRASHED), changed)
    columns = "name, config, source_hash, kernel, registers, spilled_bytes, shared_bytes, measurements, ok"
    one, other = sorted(_asked(place, f"SELECT {columns} FROM candidates"), key=lambda row: str(row[2]))
    assert (one[2], other[2]) == ("abc", "new") and one[0] == "looped t1" and json.loads(str(one[1]))[1] == [["M", 4096]]
    assert one[3:] == ("k0", 64, 16, 49152, 2, 1) and other[3:] == ("k0", 64, 16, 49152, 1, 1)


def test_a_state_that_is_not_finite_is_kept_as_text(place: Place, measurement: Make) -> None:
    filled(place, dataclasses.replace(measurement(), state=(("mhz", float("nan")),)))
    assert Store(place).measurements()[0].state == (("mhz", "nan"),)


def _asked(place: Place, question: str) -> list[tuple[object, ...]]:
    from polytile.store.reading import reading

    with reading(place) as reader:
        return reader.rows(question)


def test_measurements_are_never_overwritten(place: Place, measurement: Make) -> None:
    filled(place, measurement())
    with pytest.raises(Exception, match="never overwritten"):
        _written(place, "UPDATE measurements SET seconds = 0")
    assert Store(place).measurements() == [measurement()]


def _written(place: Place, *statements: str) -> None:
    """Edits a store behind polytile's back."""
    if isinstance(place, Server):
        import psycopg

        with psycopg.connect(place.url) as connection:
            connection.execute("SET search_path TO polytile")
            for statement in statements:
                connection.execute(statement)
        return
    import contextlib
    import sqlite3

    with contextlib.closing(sqlite3.connect(place)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def test_merging_is_a_union_in_any_order_and_as_often_as_one_likes(places: Places, measurement: Make) -> None:
    a, b, both = places(), places(), places()
    filled(a, everything(measurement), measurement(2))
    filled(b, measurement(2), measurement(3))
    assert transfer.merge(a, both).new == 2 and transfer.merge(b, both).new == 2
    assert transfer.merge(a, b).new == 2 and transfer.merge(b, a).new == 2
    assert records(a) == records(b) == records(both)
    assert str(transfer.merge(a, b)) == "0 new, 4 known"


def test_a_file_and_a_server_merge_into_each_other(tmp_path: Path, database: Server, measurement: Make) -> None:
    filled(tmp_path / "s", everything(measurement), measurement(2))
    filled(database, measurement(3))
    assert transfer.merge(tmp_path / "s", database).new == 2 and transfer.merge(database, tmp_path / "s").new == 1
    assert records(tmp_path / "s") == records(database) and transfer.merge(database, tmp_path / "s").new == 0


def test_lines_carry_a_store_to_another(places: Places, tmp_path: Path, measurement: Make) -> None:
    a, b = filled(places(), everything(measurement), measurement(2, outcome=Outcome.WRONG)), places()
    for new in (2, 0):
        assert transfer.export_lines(a, tmp_path / "lines").new == new
    for new in (2, 0):
        assert transfer.import_file(tmp_path / "lines", b).new == new
    assert records(b) == records(a)
    assert [r.measurement.machine for r in records(b)] == [r.measurement.machine for r in records(a)]


def test_t4_has_every_measurement(place: Place, measurement: Make) -> None:
    filled(place, dataclasses.replace(everything(measurement), max_error=1e-7), measurement(2))
    results = json.loads(kernel_tuner.text(records(place)))["results"]
    assert len(results) == 2
    said = {item["name"]: item["value"] for item in results[0]["measurements"]}
    assert said["registers"] == 64 and said["shared_bytes"] == 49152 and said["predicted"] == pytest.approx(0.02)


def test_a_sound_store_has_no_troubles_and_an_edited_one_is_found_out(place: Place, measurement: Make) -> None:
    filled(place, everything(measurement), measurement(2, outcome=Outcome.WRONG))
    health = check.check(place)
    assert not health.troubles and health.size_bytes > 0
    assert dict(health.counts) == {"measurements": 2, "problems": 2, "kernels": 1, "devices": 1, "environments": 1}
    assert dict(health.outcomes) == {"ok": 1, "wrong result": 1}
    drop = "DROP TRIGGER measurements_stay" + (" ON measurements" if isinstance(place, Server) else "")
    _written(place, drop, "UPDATE measurements SET seconds = 0.5 WHERE outcome = 'ok'")
    assert "has a seconds that does not follow" in check.check(place).troubles[0]


def test_what_no_lookup_returns_can_be_removed_and_readers_miss_nothing(place: Place, measurement: Make) -> None:
    new = dataclasses.replace(measurement(1), source_hash="new")
    transfer.add([Record("a", 1.0, measurement(1)), Record("b", 9.0, new), Record("c", 2.0, measurement(2))], place)
    running = Store(place)
    assert len(running.exact(new.problem, ENVIRONMENT)) == 2
    found = cleanup.stale(place, [dict(ENVIRONMENT)], 100.0)
    assert [group.why for group in found] == ["its source has changed since"]
    assert cleanup.remove(place, found) == 1 and [r.uid for r in records(place)] == ["c", "b"]
    filled(place, measurement(7))
    assert running.refresh() == 1 and running.exact(measurement(7).problem, ENVIRONMENT)
    assert not check.check(place).troubles
