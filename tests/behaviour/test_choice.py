"""What stands behind one call: shared definitions, how a kernel is chosen, and how the choice can be seen."""

from __future__ import annotations

import csv
import gc
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

import polytile
from polytile import options
from polytile.compiler import programs as compiler
from polytile.dispatch.registry import define
from polytile.dispatch.trace import COLUMNS
from polytile.errors import OptionError
from polytile.runtime import native
from polytile.tuning import measure
from tests.behaviour.helpers import (
    assert_as_exact,
    check,
    compiled,
    copied,
    decisions,
    multikernel,
    multikernels,
    names,
    sized,
    variants,
)
from tests.compilers import in_company, most_at_once


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


# M1: definitions.


def test_call_sites_with_the_same_sub_kernels_share_one_definition() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.softmax(x, -1), torch.softmax(torch.cumsum(y, -1), -1).sort().values

    def twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.softmax(x, -1), torch.softmax(torch.sort(y).values, -1)

    check(twice, compiled(twice), *sized((40, 300), (12, 500)))
    (program,) = compiler.compiled_programs()
    calls = [kernel for kernel, _ in program.calls if any("exp" in op for op in kernel.spec.source_ops)]
    assert len(calls) == 2 and len(set(calls)) == 1
    assert len(calls[0].decisions) == 2, "each size goes its own way"
    check(function, compiled(function), *sized((40, 300), (12, 500)))
    assert multikernel("exp").candidates[0].source_hash == calls[0].candidates[0].source_hash  # type: ignore[attr-defined]


def test_another_tuple_of_sub_kernels_is_another_multikernel() -> None:
    compiled(softmax)(*sized((40, 300)))
    whole = multikernel("exp")
    assert define(whole.spec, whole.candidates) is not define(whole.spec, whole.candidates[:1])
    part = define(whole.spec, whole.candidates[:2])
    assert part.candidates[0] is whole.candidates[0] and part is not define(whole.spec, whole.candidates[:1])
    assert define(whole.spec, whole.candidates[:2]) is part


def test_kernels_that_no_program_needs_are_let_go() -> None:
    run = compiled(softmax)
    check(softmax, run, *sized((40, 300)))
    assert len(multikernels()) == 1
    del run
    torch._dynamo.reset()
    polytile.reset()
    gc.collect()
    assert multikernels() == []


# M3, M6: tuning leaves no trace in the results.


def test_tuning_on_the_callers_arguments_changes_none_of_them(empty_cache: Path) -> None:
    def function(x: Tensor, total: Tensor) -> Tensor:
        total.add_(x.sum(0))
        x.mul_(0.5)
        return torch.softmax(x, -1)

    run = compiled(function)
    for shape in ((30, 200), (70, 1025)):
        mine = tuple(sized(shape, shape[1:]))
        theirs, exact = copied(mine), tuple(t.double() for t in mine)
        got, eager, right = run(*mine), function(*theirs), function(*exact)
        assert_as_exact((got, *mine), (eager, *theirs), (right, *exact), shape)
    assert polytile.counters["candidates_benchmarked"] > 0


def test_a_shape_is_tuned_once_and_then_goes_straight_to_the_winner() -> None:
    run = compiled(softmax)
    x = next(sized((60, 900)))
    run(x)
    counts = dict(polytile.counters)
    (decision,) = decisions()
    assert decision.link in ("measured", "exact", "nearby")
    for _ in range(5):
        check(softmax, run, x)
    assert dict(polytile.counters) == counts
    assert decisions() == [decision]


def test_tuning_does_not_move_the_random_state() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    x = next(sized((21, 800)))
    state = torch.get_rng_state()
    compiled(function)(x)
    assert torch.equal(torch.get_rng_state(), state)


# M7: forcing.


@pytest.mark.parametrize("wanted", ["persistent t1", "looped t1"])
def test_forced_by_option(wanted: str) -> None:
    check(softmax, compiled(softmax, force=wanted), *sized((9, 600)))
    (decision,) = decisions()
    assert (decision.candidate, decision.link) == (wanted, "forced")
    assert polytile.counters["candidates_benchmarked"] == 0


@pytest.mark.parametrize("wanted", ["persistent t1", "looped t1"])
def test_forced_by_environment_variable(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_FORCE", wanted)
    check(softmax, compiled(softmax), *sized((9, 600)))
    assert [d.candidate for d in decisions()] == [wanted]


def test_forced_for_one_kernel_by_its_name() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.softmax(x, -1), torch.cumsum(x, 0)

    (x,) = sized((9, 600))
    compiled(function)(x)
    name = multikernel("exp").spec.name
    torch._dynamo.reset()
    polytile.reset()
    check(function, compiled(function, force=f"{name}=looped t1"), x)
    forced = [d for d in decisions() if d.link == "forced"]
    assert {(d.kernel, d.candidate) for d in forced} == {(name, "looped t1")}


def test_forcing_a_candidate_that_the_named_kernel_lacks_names_those_it_has() -> None:
    (x,) = sized((9, 600))
    compiled(softmax)(x)
    name = multikernel("exp").spec.name
    torch._dynamo.reset()
    with pytest.raises(OptionError, match=re.escape("'persistent t1'")):
        compiled(softmax, force=f"{name}=persistant t1")(x)


@pytest.mark.parametrize("entry", ["persistant t1", "some_kernel=persistent t1", "*=persistant*", "looped*, tile_packed"])
def test_a_misspelt_name_that_forces_nothing_is_told(entry: str, caplog: pytest.LogCaptureFixture) -> None:
    check(softmax, compiled(softmax, force=entry, tune="off"), *sized((9, 600)))
    (told,) = (record.getMessage() for record in caplog.records if "force" in record.getMessage())
    assert repr(entry.split(", ")[-1]) in told and ("did you mean 'persistent" in told) == ("persistant" in entry)


def test_an_entry_that_names_no_candidate_is_an_error() -> None:
    with pytest.raises(OptionError, match="option 'force' has the entry 'softmax='; write KERNEL=CANDIDATE or CANDIDATE"):
        polytile.compile(lambda x: x.sum(-1), options={"force": "looped t1, softmax="})(torch.randn(5, 6))


def test_names_that_force_something_are_told_nothing_of(caplog: pytest.LogCaptureFixture) -> None:
    check(softmax, compiled(softmax, force="looped*, softmax=none*, persistent t1"), *sized((9, 600)))
    assert "looped" not in caplog.text and "persistent" not in caplog.text


def test_a_forced_kernel_that_cannot_run_at_a_size_is_passed_over_there() -> None:
    run = compiled(softmax, force="split*")
    check(softmax, run, *sized((2, 1 << 16)))
    check(softmax, run, *sized((3, 11)))
    assert all(d.candidate for d in decisions())


# M8: persistence.


def test_persistence_off_leaves_the_cache_directory_as_it_was(empty_cache: Path) -> None:
    check(softmax, compiled(softmax, persist=False), *sized((19, 800)))
    assert decisions()[0].link == "measured"
    left = [path for path in empty_cache.rglob("*") if path.is_file() and "toolchain" not in str(path)]
    assert not [path for path in left if "store" in path.name or "softmax" in path.name], left


def test_choices_outlive_the_compiled_function(empty_cache: Path) -> None:
    (x,) = sized((19, 800))
    compiled(softmax)(x)
    (first,) = decisions()
    assert (empty_cache / "store.sqlite3").stat().st_size > 0
    torch._dynamo.reset()
    polytile.reset()
    for kernel in multikernels():
        kernel.forget()
    compiled(softmax)(x)
    (second,) = decisions()
    assert polytile.counters["candidates_benchmarked"] == 0 and polytile.counters["store_hits"] == 1
    assert (second.candidate, second.link) == (first.candidate, "exact")


# M9: compiling.


def test_sub_kernels_compile_side_by_side(empty_cache: Path, tmp_path: Path) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x * 1.625, -1)  # a kernel that no other test has had compiled

    assert native.module() is not None, "nothing but kernels is compiled below"
    with options.override(cxx=in_company(tmp_path / "g++", tmp_path / "log", 2), compile_workers=2):
        check(function, compiled(function, tune="all"), *sized((64, 3000)))
    assert most_at_once(tmp_path / "log") >= 2


def test_a_forced_kernel_waits_for_no_other(empty_cache: Path) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x * 2.625, -1)

    check(function, compiled(function, force="looped t1"), *sized((64, 3000)))
    (kernel,) = multikernels()
    assert {"persistent", "looped"} <= variants(kernel)
    assert decisions()[0].candidate == "looped t1"
    assert len([path for path in empty_cache.rglob("*.so") if "launcher" not in path.name]) == 1


# M11: what can be seen of a choice.


def test_every_decision_is_a_row_of_the_metrics_table(tmp_path: Path, empty_cache: Path) -> None:
    path = tmp_path / "metrics.csv"
    run = compiled(softmax, metrics=str(path))
    for shape in ((20, 300), (21, 3000)):
        run(*sized(shape))
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    (kernel,) = multikernels()
    assert len(rows) == len(kernel.decisions) == 2
    for row, shape in zip(rows, ((20, 300), (21, 3000)), strict=True):
        assert tuple(row) == COLUMNS
        assert row["multikernel"] == kernel.spec.name
        assert row["kernels"].split(";") == names(kernel)
        assert {int(part.split("=")[1]) for part in row["size_hints"].split(";")} == set(shape)
        assert row["reduction_hint"] == "inner"
        assert row["pick"] in names(kernel)
        times = dict(zip(names(kernel), row["latencies_us"].split(";"), strict=True))
        assert float(times[row["pick"]]) > 0
        paths = dict(zip(names(kernel), row["source_paths"].split(";"), strict=True))
        assert "polytile_kernel" in Path(paths[row["pick"]]).read_text()


def test_the_debug_log_says_a_decision_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    run = compiled(softmax, debug=1)
    run(*sized((20, 300)))
    (decision,) = decisions()
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("polytile: ")]
    assert lines == [f"polytile: {decision}"]
    for word in (decision.kernel, decision.candidate, "=20", "=300"):
        assert word in lines[0]


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_each_level_of_debugging_shows_more_on_stderr(level: int, capfd: pytest.CaptureFixture[str]) -> None:
    inner = (torch.sin, torch.cos, torch.tanh, torch.sigmoid)[level - 1]  # what another test generated is known
    compiled(lambda x: torch.softmax(inner(x), -1), debug=level)(*sized((20, 300)))
    told = capfd.readouterr().err
    assert "polytile: " in told
    assert ("# polytile program" in told) == (level >= 2)
    assert ("def forward" in told and "after vertical fusion" in told and "reduce max" in told) == (level >= 3)
    assert ("threads divide" in told) == (level >= 4)


def test_explain_lists_operators_and_decisions() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.sort(torch.softmax(x @ y, -1)).values.t()

    explained = polytile.explain(function, *sized((30, 40), (40, 50)))
    how = {row.operator.split(".")[1]: row for row in explained.operators}
    assert how["mm"].how == "template" and how["sort"].how == "library" and how["sort"].reason
    assert any(row.how == "view" for row in explained.operators)
    assert all(row.count >= 1 for row in explained.operators)
    assert {row.candidate for row in explained.decisions} <= {
        name for kernel in multikernels() for name in names(kernel)
    }
    for row in explained.decisions:
        assert row.kernel and row.sizes and row.provenance
        assert row.seconds is None or row.seconds > 0
    assert "sort" in str(explained)


# H4, M6: to each its own.


def test_each_shape_goes_to_the_candidate_that_is_fastest_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which one variant is fast for short rows and the other for long ones."""

    def clock(contender: measure.Contender, repeats: int) -> float:
        columns = contender.args[0].shape[-1]
        best = "looped t1" if columns > 500 else "persistent t1"
        return repeats * (1e-6 if contender.name == best else 1e-3)

    monkeypatch.setattr(measure, "time_burst", clock)
    run = compiled(softmax)
    for columns in (40, 3000, 64, 1024, 200):
        check(softmax, run, *sized((7, columns)))
    chosen = {dict(d.sizes)[max(dict(d.sizes), key=lambda n, d=d: dict(d.sizes)[n])]: d.candidate for d in decisions()}
    assert {size: name.split()[0] for size, name in chosen.items()} == {
        40: "persistent", 64: "persistent", 200: "persistent", 1024: "looped", 3000: "looped",
    }  # fmt: skip


def test_one_cache_directory_is_used_by_these_tests_and_not_the_users() -> None:
    assert os.environ["POLYTILE_CACHE_DIR"] == options.get("cache_dir") != options.BY_NAME["cache_dir"].default


# Sizes that come often.


def test_results_stay_right_while_sizes_that_come_often_are_measured_by_several_threads() -> None:
    """With no limit to what it may take, that is at the first look."""

    def function(x: Tensor, weight: Tensor) -> Tensor:
        x.mul_(1.5)
        return torch.softmax(x @ weight, -1)

    got = compiled(function, refine=1e6)
    (weight,) = sized((48, 64))
    got(torch.randn(736, 48), weight)
    inputs = {rows: torch.randn(rows, 48) for rows in (752, 832, 1008)}
    before = polytile.counters["candidates_benchmarked"]

    def work(rows: int) -> None:
        for number in range(400):
            x = inputs[rows].clone()
            result = got(x, weight)
            if number % 50 == 0:
                expected = torch.softmax(inputs[rows] * 1.5 @ weight, -1)
                assert torch.allclose(x, inputs[rows] * 1.5) and torch.allclose(result, expected, atol=1e-5)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, inputs))
    assert polytile.counters["sizes_refined"] > 0 and polytile.counters["candidates_benchmarked"] > before
