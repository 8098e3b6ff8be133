"""`polytile why`: the answer with its grounds, or in what the nearest measurement differs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from polytile.cli import why_command
from polytile.dispatch.plan_conditions import plan_conditions
from polytile.dispatch.planfile import Pinned, Plan, here
from polytile.facts import read_regime
from polytile.problem import Outcome
from tests.cli.helpers import DIGEST, filled, measured, named, run


@pytest.fixture
def store(empty_cache: Path) -> Path:
    path = filled(
        empty_cache / "store.sqlite3",
        measured(candidate="persistent t1", seconds=3e-5),
        measured(candidate="looped t1", seconds=1.01e-5),
        measured(candidate="looped t2", seconds=1e-5),
        measured(candidate="split t2", outcome=Outcome.COMPILE_ERROR),
        measured((("M", 2000), ("N", 512)), candidate="split t2"),
    )
    named(path, "softmax_228d962c")
    return path


def rows(output: str) -> list[list[str]]:
    """Candidate, µs, ratio and note of each row."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines() if line.startswith("| ")][
        1:
    ]


def test_the_answer_has_its_grounds_and_the_others_with_their_times(store: Path) -> None:
    result = run("why", "softmax", "M=64", "N=512")
    assert result.exit_code == 0
    assert "softmax_228d962c at M=64 N=512 → looped t1: measured at these sizes" in result.output
    assert rows(result.output)[1:] == [  # times within the noise band count as equal: the first in order runs
        ["looped t2", "10.0", "0.99", ""],
        ["looped t1", "10.1", "1.00", ""],
        ["persistent t1", "30.0", "2.97", ""],
        ["split t2", "–", "–", "did not compile"],
    ]


def test_sizes_can_be_plain_numbers_and_left_out_where_there_is_one(store: Path) -> None:
    assert "at M=64 N=512 → looped t1" in run("why", "softmax", "64", "512").output
    assert "at M=64 N=512 → looped t1" in run("why", "228d", "64").output


def test_sizes_of_the_same_regime_are_answered_by_it(store: Path) -> None:
    result = run("why", "softmax", "48", "400")
    assert result.exit_code == 0
    assert "at M=48 N=400 → looped t1: measured in the same regime (M=64 N=512)" in result.output


@pytest.mark.parametrize(
    "sizes, said",
    [
        (
            ("72", "512"),
            "size M: measured at 64, asked for 72 (regimes 46..64, 16 divides it; 65..90, 16 does not divide it)",
        ),
        (("1900", "5"), "size N: measured at 512, asked for 5 (regimes 363..512, 16 divides it; 5)"),
    ],
)
def test_a_miss_names_the_nearest_measurement_and_the_size_that_differs(
    store: Path, sizes: tuple[str, str], said: str
) -> None:
    result = run("why", "softmax", *sizes)
    assert result.exit_code == 1
    assert "nothing was measured for this call; the nearest measurement is at" in result.output
    assert f"- {said}." in result.output


def test_a_miss_names_the_part_of_the_environment_that_differs(empty_cache: Path) -> None:
    filled(empty_cache / "store.sqlite3", measured(torch="1.0", threads=77))
    result = run("why", DIGEST, "64", "512")
    assert result.exit_code == 1
    assert (
        "- torch: measured with 1.0, here 2." in result.output and "- threads: measured with 77, here" in result.output
    )


def test_what_another_environment_measured_does_not_answer_and_does_not_stand_in_the_way(store: Path) -> None:
    filled(store, measured(candidate="other", seconds=1e-9, torch="1.0"))
    assert "→ looped t1" in run("why", "softmax", "64", "512").output


def test_only_the_latest_source_of_a_candidate_counts(store: Path) -> None:
    filled(store, measured(candidate="persistent t1", seconds=1e-6, source="new"))
    result = run("why", "softmax", "64", "512")
    assert "→ persistent t1" in result.output and len(rows(result.output)) == 5


def pinned(regime: str) -> Pinned:
    return Pinned("softmax", read_regime(regime), "split t9", "s", DIGEST, ("float32",), conditions=plan_conditions("cpu"))


def test_under_load_the_librarys_kernel_stays_where_nothing_is_surely_faster(empty_cache: Path) -> None:
    samples = {"library": (1.0e-5, 1.1e-5, 1.3e-5), "cpp": (0.95e-5, 1.05e-5, 1.25e-5)}
    rows = {
        origin: dataclasses.replace(measured(candidate=origin), origin=origin, samples=times, state=(("disturbed", 0.5),))
        for origin, times in samples.items()
    }
    filled(empty_cache / "store.sqlite3", rows["cpp"], rows["library"])
    assert "→ library: measured at these sizes" in run("why", DIGEST[:6], "64", "512").output


def test_a_plan_answers_first(store: Path, tmp_path: Path) -> None:
    regime = "M=64..90%16 N=512..724%16"
    Plan((pinned(regime),), here()).write(tmp_path / "p")
    inside = run("why", "softmax", "80", "512", "--plan", tmp_path / "p")
    assert inside.exit_code == 0 and f"→ split t9: pinned by {tmp_path / 'p'} for {regime}" in inside.output
    for outside in ("72", "96"):
        assert "split t9" not in run("why", "softmax", outside, "512", "--plan", tmp_path / "p").output
    assert run("why", "softmax", "64", "512", "--plan", tmp_path / "none").exit_code == 2


def test_a_plan_for_rows_that_a_power_of_two_divides_answers_for_those_alone(store: Path, tmp_path: Path) -> None:
    Plan((pinned("M=64..90%16 N=363..512 N%4"),), here()).write(tmp_path / "p")
    answers = {n: "split t9" in run("why", "softmax", "80", n, "--plan", tmp_path / "p").output for n in ("380", "382", "381")}
    assert answers == {"380": True, "382": False, "381": False}


@pytest.mark.parametrize(
    "words, said",
    [
        (("relu", "1"), "no measurement of a kernel called 'relu'; it has softmax_228d962c."),
        (("softmax", "K=3"), "'K=3' is no size of kernel softmax_228d962c; give its sizes as M=… N=…."),
        (("softmax", "M=many"), "'M=many' is no size"),
        (("softmax", "1", "2", "3"), "'3' is no size"),
        (("softmax",), "was measured at several M (64, 2000); add M=… to the sizes, or --all."),
    ],
)
def test_what_was_asked_wrongly_is_said(store: Path, words: tuple[str, ...], said: str) -> None:
    result = run("why", *words)
    assert result.exit_code == 2 and said in result.output


def test_a_name_that_fits_several_kernels_lists_them(store: Path) -> None:
    filled(store, measured(kernel="0123456789abcdef"))
    named(store, "softmax_backward_01234567")
    result = run("why", "softmax", "64", "512")
    assert result.exit_code == 2 and "'softmax' may mean 2 kernels" in result.output
    assert rows(result.output)[1:] == [
        ["1", "softmax_228d962c", "228d", "2", "5", "M=64 N=512; M=2000 N=512"],
        ["2", "softmax_backward_01234567", "0123", "1", "1", "M=64 N=512"],
    ]
    assert "in place of softmax; or add --all." in result.output
    for beginning in ("228d", "softmax_2", "softmax_228d962c"):
        assert "**softmax_228d962c at M=64 N=512 → looped t1" in run("why", beginning, "64", "512").output
    assert run("why", "backward", "64").exit_code == 0, "a part of the name that no other has"


def test_all_kernels_that_a_name_fits_are_asked_about_at_all_their_sizes(store: Path) -> None:
    filled(store, measured(kernel="0123456789abcdef"))
    named(store, "softmax_backward_01234567")
    result = run("why", "softmax", "--all")
    assert result.exit_code == 0
    assert [line.split(" →")[0] for line in result.output.splitlines() if " → " in line] == [
        "**softmax_228d962c at M=64 N=512", "**softmax_228d962c at M=2000 N=512", "**softmax_backward_01234567 at M=64 N=512",
    ]  # fmt: skip
    assert "M=2000" not in run("why", "softmax", "M=64", "--all").output
    assert run("why", "softmax", "K=3", "--all").exit_code == 2


def test_a_kernel_measured_on_this_machines_gpu_is_asked_about_there(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = why_command.Here("cuda-sm90-132sm-1", {"torch": "2.11", "triton": "3.6.0"}, 2)
    made = measured(candidate="persistent x=512")
    problem = dataclasses.replace(made.problem, device=gpu.device, layouts=())
    there = dataclasses.replace(made, problem=problem, environment=tuple(sorted(gpu.environment.items())))
    path = filled(empty_cache / "store.sqlite3", there)
    (path.parent / "cubins").mkdir()
    (path.parent / "cubins" / f"softmax_{DIGEST[:8]}-{'0' * 24}.py").write_text("")
    missed = run("why", "softmax", "64", "512")
    assert missed.exit_code == 1 and "measured on cuda-sm90" in missed.output
    monkeypatch.setattr(why_command, "gpus", lambda: [gpu])
    found = run("why", "softmax", "64", "512")
    assert found.exit_code == 0 and "→ persistent x=512: measured at these sizes" in found.output
    assert "triton" not in run("why", "softmax", "4096", "512").output, "the nearest differs in the size alone"
