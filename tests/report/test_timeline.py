"""When what was measured, by place or worker."""

from __future__ import annotations

import dataclasses
import json

from polytile.report import pages
from polytile.report.contents import Held, Report, Source, report
from polytile.report.payload import Payload
from polytile.report.timeline import PARTS, Sitting
from polytile.store.reading import Record
from tests.report.helpers import record

HOUR = 3600.0


def at(seconds: float, one: Record) -> Record:
    return dataclasses.replace(one, taken_at=1.7e9 + seconds)


def made(*records: Record, sittings: list[Sitting] | None = None, state: str = "") -> Report:
    held = Held(Source("store.sqlite3"), records, state, sittings)
    return report(held, None, lambda problem: f"loop_{problem.kernel[:8]}", 1.7e9, "polytile report")


def test_a_stores_spans_end_where_nothing_was_measured_for_long() -> None:
    first, second = (("M", 1), ("N", 64)), (("M", 2), ("N", 64))
    records = [
        at(0, record("a", sizes=first)), at(10, record("b", sizes=first)), at(20, record("a", sizes=second)),
        at(9 * HOUR, record("a", sizes=second)),
    ]  # fmt: skip
    early, late = made(*records).timeline.spans
    assert (early.seconds, early.measurements, set(early.spots)) == (20.0, 3, {(0, 0), (0, 1)})
    assert (late.seconds, late.measurements, set(late.spots)) == (0.0, 1, {(0, 1)})


def test_places_have_lanes_of_their_own() -> None:
    line = made(at(0, record(torch="2.12")), at(1, record(torch="2.13")), at(HOUR, record(torch="2.12"))).timeline
    assert line.lanes == "place"
    assert [(span.lane, span.measurements) for span in line.spans] == [("place 1", 1), ("place 1", 1), ("place 2", 1)]


def test_a_campaigns_spans_are_its_workers_units_and_say_what_failed() -> None:
    found = at(100, record("a"))
    sittings = [
        Sitting("gpu1", 1.7e9 + 101, 5.0, [found], "mm_1234abcd"),
        Sitting("gpu0", 1.7e9 + 50, 2.0, [], "mm_5678abcd", "RuntimeError: out of luck"),
    ]
    text = pages.times(made(found, sittings=sittings)).markdown()
    lost, kept = (row for row in text.splitlines() if row.startswith("| gpu"))
    assert "gpu0" in lost and "2.0" in lost and "mm_5678abcd: RuntimeError: out of luck" in lost
    assert "gpu1" in kept and "5.0" in kept and "loop_228d962c M=64 N=512" in kept and "mm_1234abcd" not in kept


def test_more_units_than_a_picture_shows_are_joined() -> None:
    records = [at(i, record("a", sizes=(("M", 1 + i), ("N", 64)))) for i in range(2 * PARTS)]
    sittings = [Sitting("w", one.taken_at, 1.0, [one], "k") for one in records]
    (span,) = made(*records, sittings=sittings).timeline.spans
    assert span.measurements == len(span.spots) == 2 * PARTS and span.seconds == 2 * PARTS


def test_the_page_has_the_same_spans_and_leads_to_sizes_that_are_alone() -> None:
    whole = made(at(0, record("a")), at(HOUR, record("a")), state="1 of 2 units measured")
    what, lanes, spans = json.loads(json.dumps(Payload(whole).values["times"]))
    assert (what, lanes) == ("place", ["place 1"])
    assert [span[:6] + [span[7]] for span in spans] == [[0, 0.0, 0.0, 1, 1, 1, [0, 0]], [0, HOUR, 0.0, 1, 1, 1, [0, 0]]]
    assert pages.summary(whole).rows[0] == ("campaign", "1 of 2 units measured")
