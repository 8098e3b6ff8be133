"""What a second process finds on disk: with it, nothing is measured and nothing is compiled."""

from __future__ import annotations

from pathlib import Path

from tests.behaviour.helpers import in_process, report_of


def test_a_second_process_measures_and_compiles_nothing(empty_cache: Path) -> None:
    cold = report_of(in_process(empty_cache))
    warm = report_of(in_process(empty_cache, "--alone"))
    assert len({kernel for kernel, *_ in cold["decisions"]}) >= 3
    assert cold["counters"]["candidates_benchmarked"] > 0 and cold["counters"]["compiler_runs"] > 0
    assert warm["counters"]["candidates_benchmarked"] == 0
    assert warm["counters"]["compiler_runs"] == 0
    assert warm["counters"]["store_hits"] > 0
    assert warm["digests"] == cold["digests"], "bit for bit the same results"
    assert warm["worst"] < 8 and cold["worst"] < 8
    assert [row[:2] for row in warm["decisions"]] == [row[:2] for row in cold["decisions"]]
    assert {link for *_, link in warm["decisions"]} <= {"exact", "only"}
    assert warm["messages"] == cold["messages"] == ""


def test_sizes_close_to_measured_ones_are_served_from_what_is_known(empty_cache: Path) -> None:
    first = report_of(in_process(empty_cache, "--sizes", "97,309"))
    assert first["counters"]["candidates_benchmarked"] > 0
    near = report_of(in_process(empty_cache, "--alone", "--sizes", "98,310"))
    assert near["worst"] < 8
    assert near["counters"]["candidates_benchmarked"] == 0 and near["counters"]["compiler_runs"] == 0
    assert "nearby" in {link for *_, link in near["decisions"]}


def test_two_processes_at_once_share_one_directory(empty_cache: Path) -> None:
    both = [report_of(process) for process in [in_process(empty_cache), in_process(empty_cache)]]
    for report in both:
        assert report["worst"] < 8 and report["messages"] == ""
    warm = report_of(in_process(empty_cache, "--alone"))
    assert warm["counters"]["candidates_benchmarked"] == warm["counters"]["compiler_runs"] == 0
    assert not list(empty_cache.rglob("*.bad"))
    assert not list((empty_cache / "tmp").iterdir())


def test_with_persistence_off_a_second_process_starts_over(empty_cache: Path) -> None:
    for _ in range(2):
        report = report_of(in_process(empty_cache, "--option", "persist=0", "--sizes", "20"))
        assert report["counters"]["candidates_benchmarked"] > 0 and report["counters"]["compiler_runs"] > 0
        assert not (empty_cache / "store.sqlite3").exists() and not list(empty_cache.rglob("*.so"))
