"""What a report says of measurements: as data, and as tables."""

from __future__ import annotations

import csv
import dataclasses
import io
import random

import pytest

from polytile.cli.kernels import Kernel
from polytile.cli.why import Here, why
from polytile.problem import Outcome
from polytile.report import pages
from polytile.report.cells import Certainty
from polytile.report.compare import FASTER, NOISE, SLOWER
from polytile.report.contents import Source
from polytile.report.predictions import calibrations, first_choices
from polytile.report.rates import rate_of
from polytile.report.slowdown import curves, single
from polytile.store.reading import Record
from tests.report.helpers import DIGEST, panels_of, record, report_of

SIZES = [(("M", m), ("N", n)) for m in (1, 7, 64) for n in (64, 512)]


@pytest.mark.parametrize(
    ("others", "certainty", "chosen"),
    [
        ([("fast", 1e-5), ("slow", 2e-5)], Certainty.CLEAR, "fast"),
        ([("fast", 1e-5), ("near", 1.01e-5)], Certainty.TIE, "fast"),
        ([("fast", 1e-5)], Certainty.ALONE, "fast"),
        ([], Certainty.NONE, None),
    ],
    ids=lambda value: getattr(value, "value", None),
)
def test_a_size_has_who_runs_and_how_sure_that_is(
    others: list[tuple[str, float]], certainty: Certainty, chosen: str | None
) -> None:
    wrong = record("wrong", outcome=Outcome.WRONG)
    (panel,) = panels_of(*[record(name, seconds) for name, seconds in others], wrong)
    (cell,) = panel.cells
    assert cell.certainty is certainty
    assert (cell.winner.candidate if cell.winner else None) == chosen
    assert cell.entries[-1].candidate == "wrong" and cell.entries[-1].seconds is None


def test_targets_say_what_is_met_and_what_is_missed() -> None:
    sizes = [(("M", m), ("N", 64)) for m in (1, 7)]
    good = [record("fast", 1e-5, size, predicted=1e-5) for size in sizes]
    good += [record("slow", 2e-5, size, predicted=3e-5) for size in sizes]
    rows = {row[0]: row[1:] for row in pages.aims(report_of(*good, before=[record("fast", 5e-6, sizes[0])])).rows}
    assert rows["what runs, × fastest, over all sizes with two times or more"] == (1.01, 1.0, "met")
    assert rows["the best predicted, × fastest, over all sizes with two times or more"][1:] == (1.0, "met")
    assert rows["sizes that became slower"] == (0, 1, "missed")
    misled = [record("fast", 1e-5, predicted=5e-5), record("slow", 2e-5, predicted=1e-5)]
    verdicts = [row[3] for row in pages.aims(report_of(*misled)).rows]
    assert verdicts == ["met", "met", "missed", "missed"]
    assert pages.aims(report_of(record("alone"))).rows == ()


def test_a_gap_as_wide_as_the_noise_is_in_doubt() -> None:
    (panel,) = panels_of(record("fast", 1e-5, spread=0.3), record("slow", 1.07e-5, spread=0.3, predicted=1e-6))
    assert panel.cells[0].certainty is Certainty.DOUBT


def test_a_time_of_zero_is_none() -> None:
    made = report_of(record("fast", 0.0), record("slow", 1e-5), before=[record("fast", 0.0)])
    assert made.panels[0].cells[0].best == pytest.approx(1e-5)
    assert made.comparison is not None and made.comparison.changes == ()


def test_a_race_under_load_is_told_from_a_close_one() -> None:
    (panel,) = panels_of(record("fast", 1e-5, disturbed=0.5), record("slow", 2e-5, disturbed=0.5))
    assert panel.cells[0].certainty is Certainty.LOAD


def test_a_panel_has_all_sizes_of_a_kernel_whether_16_divides_them_or_not() -> None:
    (panel,) = panels_of(*[record(sizes=sizes) for sizes in SIZES])
    assert len(panel.cells) == len(SIZES) and panel.layouts == ("threads=2",)
    assert panel.varying == ("M", "N")


def test_devices_environments_and_kernels_have_panels_of_their_own() -> None:
    rows = [record(), record(device="cpu-avx2-2t-y"), record(torch="2.14"), record(kernel="e92d9fa160f0997e")]
    made = report_of(*rows)
    assert len(made.panels) == 4 and sorted({made.place(panel) for panel in made.panels}) == [1, 2, 3]


def test_the_choice_is_that_of_why() -> None:
    drawn = random.Random(7)
    rows = [
        record(name, drawn.uniform(1e-5, 1.1e-5), sizes, origin=origin, spread=drawn.uniform(0, 0.1))
        for sizes in SIZES
        for name, origin in (("persistent t1", "cpp"), ("looped t2", "cpp"), ("aten", "library"))
    ]
    kernel = Kernel(DIGEST, ("loop_228d962c",), tuple(rows))
    (panel,) = panels_of(*rows)
    for cell in panel.cells:
        (answer,) = why(kernel, dict(cell.sizes), Here("cpu-avx512-2t-x", {"torch": "2.13"}, 2))
        assert cell.winner is not None and cell.winner.candidate == answer.candidate


def test_one_candidate_for_all_sizes_has_a_time_at_each() -> None:
    rows = [record("everywhere", 2e-5, sizes) for sizes in SIZES]
    rows += [record("also", 6e-5, sizes) for sizes in SIZES] + [record("here", 1e-5, sizes) for sizes in SIZES[:-1]]
    (panel,) = panels_of(*rows)
    found = curves(panel)
    assert [curve.candidate for curve in found[1:]] == ["everywhere", "also", "here"]
    best = single(found)
    assert best is not None and best.candidate == "everywhere"
    assert best.worst[0] == pytest.approx(2) and best.points[0][0] == 1 and panel.cells[best.points[0][1]].sizes == SIZES[-1]
    assert found[0].geomean == found[0].worst[0] == 1  # what is chosen


def test_a_kernel_at_one_size_has_no_curves() -> None:
    (panel,) = panels_of(record("fast"), record("slow", 2e-5))
    assert curves(panel) == () and single(()) is None


def product_terms(m: int, n: int, k: int) -> dict[str, float]:
    return {"work.batch": 1.0, "work.M": m, "work.N": n, "work.K": k, "work.itemsize": 4.0}


def test_predictions_are_compared_with_times_by_source() -> None:
    rows = [record("tile", 1e-5, sizes, predicted=2e-5) for sizes in SIZES[:2]]
    rows += [record("aten", 2e-5, sizes, predicted=1e-5, origin="library") for sizes in SIZES[:2]]
    (panel,) = panels_of(*rows)
    generated, library = calibrations(panel)
    assert (generated.origin, library.origin) == ("cpp", "library")
    assert generated.geomean == generated.quantile(0.95) == pytest.approx(2) and library.geomean == pytest.approx(0.5)
    assert first_choices(panel) == pytest.approx((2, 2))  # the best predicted is the library's, at each of two sizes


def test_what_is_not_predicted_everywhere_says_nothing_of_first_choices() -> None:
    (panel,) = panels_of(record("tile", 1e-5, predicted=1e-5), replace_prediction(record("user", 2e-5), None))
    assert first_choices(panel) == () and len(calibrations(panel)) == 1


def replace_prediction(one: Record, predicted: float | None) -> Record:
    return dataclasses.replace(one, measurement=dataclasses.replace(one.measurement, predicted=predicted))


def test_rates_are_those_of_what_runs_under_the_highest_on_record() -> None:
    sizes = [(("M", m), ("N", 512)) for m in (64, 128)]
    rows = [record("tile", 2e-5, at, terms=product_terms(at[0][1], 512, 256)) for at in sizes]
    rows += [record("looped", 1e-6, kernel="b" * 16, terms={"work.bytes": 1e5}), record("unknown", kernel="c" * 16)]
    made = report_of(*rows)
    by_name = dict(zip((panel.digest for panel in made.panels), zip(made.panels, made.roofs, strict=True), strict=True))
    panel, roof = by_name[DIGEST]
    assert roof.operations == pytest.approx(2 * 128 * 512 * 256 / 2e-5) and roof.bytes == pytest.approx(1e11)
    slow, fast = map(rate_of, panel.cells)
    assert slow is not None and fast is not None and slow.intensity is not None
    assert slow.operations == pytest.approx(2 * 64 * 512 * 256 / 2e-5)
    assert roof.share(slow) == pytest.approx(slow.operations / min(roof.operations, slow.intensity * 1e11))
    assert roof.share(fast) == pytest.approx(1)
    loop, roof = by_name["b" * 16]
    found = rate_of(loop.cells[0])
    assert found is not None and found.operations is None and roof.share(found) == pytest.approx(1)
    assert rate_of(by_name["c" * 16][0].cells[0]) is None


def test_only_what_exceeds_the_noise_has_changed() -> None:
    before = [record(seconds=1e-5, sizes=sizes) for sizes in SIZES]
    times = [1e-5, 1.015e-5, 2e-5, 0.5e-5]
    made = report_of(*[record(seconds=t, sizes=s) for t, s in zip(times, SIZES, strict=False)], before=before)
    assert made.comparison is not None
    assert [change.verdict for change in made.comparison.changes] == [SLOWER, NOISE, NOISE, FASTER]
    assert (made.comparison.only_before, made.comparison.only_after) == (2, 0)
    assert made.comparison.geomean == pytest.approx(1.015**0.25)


def test_the_noise_of_a_time_widens_its_band() -> None:
    made = report_of(record(seconds=1.1e-5, spread=1.0), before=[record(seconds=1e-5, spread=1.0)])
    assert made.comparison is not None and made.comparison.changes[0].verdict == NOISE


def test_what_was_measured_elsewhere_is_compared_and_said() -> None:
    made = report_of(record(torch="2.14"), record(torch="2.13", seconds=2e-5), before=[record(torch="2.13")])
    assert made.comparison is not None
    (change,) = made.comparison.changes
    assert change.differs == () and change.ratio == pytest.approx(2)  # the same environment comes first
    made = report_of(record(torch="2.14"), before=[record(torch="2.13")])
    assert made.comparison is not None and made.comparison.changes[0].differs == ("torch: 2.13 → 2.14",)


def test_every_table_has_its_rows_as_csv_and_as_text() -> None:
    made = report_of(record("fast"), record("slow|er", 2e-5, registers=40), before=[record("fast", 2e-5)])
    for name, table in pages.tables(made):
        head, *rows = csv.reader(io.StringIO(table.csv()))
        assert len(head) == len(table.columns) and len(rows) == len(table.rows)
        assert rows or name in ("worst", "slowdown", "rates")  # of one size without its work there are none
        assert all(str(cell) in table.markdown().replace("\\|", "|") for row in table.cells() for cell in row)
    candidates = dict(pages.tables(made))["candidates"].csv()
    (slow,) = [row for row in csv.DictReader(io.StringIO(candidates)) if row["candidate"] == "slow|er"]
    assert float(slow["seconds"]) == pytest.approx(2e-5) and slow["× fastest"] == "2.0" and slow["registers"] == "40"


def test_commands_name_the_store_and_what_they_show() -> None:
    assert Source("my store.sqlite3").why(DIGEST, SIZES[0]) == f"polytile why {DIGEST} M=1 N=64 --store 'my store.sqlite3'"
    assert Source("a.jsonl", exported=True).show(DIGEST) == "polytile replay a.jsonl --kernel 228d962c --choices"
