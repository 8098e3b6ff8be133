"""Plan files: what is written, what a dispatch makes of it, and what is said where the plan does not fit."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path

import pytest

from polytile import options
from polytile.compiler.plans import save_plan
from polytile.counters import counters
from polytile.dispatch import planfile
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.planfile import Pinned, Plan
from polytile.errors import NotInPlan, OptionError, PlanError
from polytile.facts import read_regime
from tests.dispatch.helpers import SPEC, Fake, arguments, new_process, spec


def pinned(regime: str = "M=32 N=64", candidate: str = "b", kernel: str = "double", source: str = "s") -> Pinned:
    return Pinned(kernel, read_regime(regime), candidate, source, f"digest of {kernel}", ("float32",), (), (("M", 32), ("N", 64)))


def kernels(b_hash: str = "") -> MultiKernel:
    return MultiKernel(SPEC, [Fake("a", 2e-5), Fake("b", 1e-5, source_hash=b_hash)])


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A plan in which the slower candidate is pinned at M=32, made here and now."""
    return written(tmp_path / "program.plan", "a")


def written(path: Path, candidate: str, m: int = 32) -> str:
    decided = kernels()
    with options.override(force=candidate):
        decided(*arguments(m))
    Plan(tuple(planfile.pinned_by(decided)), planfile.here()).write(path)
    new_process()
    return str(path)


# The file.


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    plan = Plan((pinned(), pinned("M=7 N=64", 'c "quoted"')), {"torch": "2.13.0", "cores": "2"})
    plan.write(tmp_path / "p")
    read = Plan.read(tmp_path / "p")
    assert read.by_key == plan.by_key and read.environment == plan.environment


def test_a_plan_has_one_decision_a_line_in_an_order_of_its_own(tmp_path: Path) -> None:
    decisions = [pinned(kernel=kernel, regime=regime) for kernel in ("relu", "double") for regime in ("M=9", "M=1")]
    text = Plan(tuple(decisions), {"torch": "2.13.0"}).text()
    assert text == Plan(tuple(reversed(decisions)), {"torch": "2.13.0"}).text()
    lines = [line.removesuffix(",").removesuffix("]}") for line in text.splitlines() if '"candidate"' in line]
    found = [(entry["kernel"], entry["regime"]) for entry in map(json.loads, lines)]
    assert found == [("double", "M=1"), ("double", "M=9"), ("relu", "M=1"), ("relu", "M=9")]


def test_an_empty_plan_is_a_plan(tmp_path: Path) -> None:
    Plan((), {}).write(tmp_path / "p")
    assert Plan.read(tmp_path / "p").decisions == ()


@pytest.mark.parametrize(
    "text, problem",
    [
        ("{", "no plan file"),
        ("[]", "no plan file"),
        ('{"format": "polytile plan"}', "no 'version'"),
        ('{"format": "polytile plan", "version": 99}', "version 99, this polytile reads 3"),
        ('{"format": "polytile plan", "version": 2, "environment": {}, "decisions": [{"kernel": "k"}]}', "no 'regime'"),
        ('{"format": "polytile plan", "version": 2, "environment": {}, "decisions": 7}', "no plan file"),
    ],
)
def test_a_file_that_is_no_plan_is_an_error_that_says_why(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "p").write_text(text)
    with pytest.raises(PlanError, match=problem):
        Plan.read(tmp_path / "p")


def test_a_plan_of_version_2_is_read_with_the_present_names(tmp_path: Path) -> None:
    sizes = (("batch", 1), ("M", 32), ("N", 64), ("K", 64))
    product = pinned("batch=1 M=32..45%16 kept=1", "tile_kept 6x4 t2")
    old = Plan((dataclasses.replace(product, sizes=(*sizes, ("kept", 1))), pinned(candidate="stripes r=8 x=4")), {})
    (tmp_path / "p").write_text(old.text().replace('"version": 3', '"version": 2'))
    found = {one.candidate: one for one in Plan.read(tmp_path / "p").decisions}
    assert str(found["tile_prepacked 6x4 t2"].regime) == "batch=1 M=32..45%16 packed=1"
    assert found["tile_prepacked 6x4 t2"].sizes == (*sizes, ("packed", 1))
    assert found["column_parallel r=8 x=4"].regime == pinned().regime


def test_a_plan_that_says_one_thing_twice_is_refused(tmp_path: Path) -> None:
    Plan((pinned(), pinned(candidate="c")), {}).write(tmp_path / "p")
    with pytest.raises(PlanError, match=r"says twice what kernel 'double' runs for M=32 N=64"):
        Plan.read(tmp_path / "p")


def test_a_plan_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"cannot be written to .*missing/p: No such file"):
        Plan((), {}).write(tmp_path / "missing" / "p")
    assert not list(tmp_path.rglob("*p*.tmp"))
    with pytest.raises(PlanError, match="cannot be written to"):
        Plan((), {}).write("")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlanError, match="pipe: it exists and is not a file"):
        Plan((), {}).write(tmp_path / "pipe")


def test_two_plans_differ_in_what_runs_not_in_what_is_there_for_readers() -> None:
    same = pinned()
    renamed = Pinned(
        "other name", *[getattr(same, name) for name in ("regime", "candidate", "source", "digest", "dtypes")]
    )
    old = Plan((same, pinned("M=1"), pinned("M=2"), pinned("M=3")), {})
    new = Plan((renamed, pinned("M=1", candidate="c"), pinned("M=2", source="edited"), pinned("M=4")), {})
    changes = {str(change.pinned.regime): change for change in planfile.compare(old, new)}
    assert set(changes) == {"M=1", "M=2", "M=3", "M=4"}
    assert changes["M=3"].after is None and changes["M=4"].before is None
    assert not planfile.compare(old, old)


# Following it.


def test_a_pinned_kernel_runs_without_measuring_though_it_is_slower(path: str, fake_clock: list[str]) -> None:
    fake_clock.clear()
    kernel = kernels()
    with options.override(plan=path, plan_missing="error"):
        kernel(*arguments(32))
    assert kernel.decisions[0].candidate == "a" and kernel.decisions[0].link == "plan"
    assert not fake_clock and not counters["candidates_benchmarked"]


def test_what_the_plan_leaves_out_is_chosen_as_without_it_and_told(path: str, caplog: pytest.LogCaptureFixture) -> None:
    kernel = kernels()
    with caplog.at_level(logging.WARNING), options.override(plan=path):
        kernel(*arguments(5000))
        kernel(*arguments(5001))
    assert kernel.decisions[0].candidate == "b" and kernel.decisions[0].link == "measured"
    assert caplog.messages == [f"Kernel 'double' at M=5000, N=64: not in the plan ({path})."]


def test_what_the_plan_leaves_out_can_be_an_error(path: str, fake_clock: list[str]) -> None:
    kernel = kernels()
    fake_clock.clear()
    with options.override(plan=path, plan_missing="error"):
        for _ in range(2):
            with pytest.raises(NotInPlan, match=r"kernel 'double' at M=5000, N=64 .*not in the plan .*save_plan"):
                kernel(*arguments(5000))
        kernel(*arguments(32))
    assert len(kernel.decisions) == 1 and not fake_clock


def test_a_pinned_kernel_that_is_gone_is_told_and_another_one_found(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = MultiKernel(SPEC, [Fake("b"), Fake("c", 2e-5)])
    with caplog.at_level(logging.WARNING), options.override(plan=path):
        kernel(*arguments(32))
    assert kernel.decisions[0].candidate == "b"
    assert caplog.messages == [f"Kernel 'double' at M=32, N=64: the plan's 'a' cannot run here ({path})."]


def test_a_pinned_kernel_that_fails_is_passed_over_or_an_error_as_asked(path: str) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("no more")

    with options.override(plan=path):
        MultiKernel(SPEC, [Fake("a", call=broken), Fake("b"), Fake("c")])(*arguments(32))
    new_process()
    with options.override(plan=path, plan_missing="error"), pytest.raises(NotInPlan, match="the plan's 'a' cannot run"):
        MultiKernel(SPEC, [Fake("a", call=broken), Fake("b"), Fake("c")])(*arguments(32))


def test_a_changed_source_is_told_and_can_be_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "p", "b")
    with caplog.at_level(logging.WARNING), options.override(plan=path):
        kernel = kernels(b_hash="edited")
        kernel(*arguments(32))
    assert kernel.decisions[0].candidate == "b" and "its source has changed" in kernel.decisions[0].provenance
    assert "the source of 'b' has changed since the plan was made" in caplog.text
    with options.override(plan=path, plan_missing="error"), pytest.raises(NotInPlan, match="source of 'b' has changed"):
        kernels(b_hash="edited")(*arguments(32))


def test_a_plan_made_elsewhere_says_so_once_and_is_followed(path: str, caplog: pytest.LogCaptureFixture) -> None:
    made = Plan.read(path)
    Plan(made.decisions, {**made.environment, "torch": "2.0.0"}).write(path)
    kernel = kernels()
    with caplog.at_level(logging.WARNING), options.override(plan=path, plan_missing="error"):
        kernel(*arguments(32))
        MultiKernel(spec(name="again"), [Fake("a"), Fake("b")])(*arguments(32))
    assert kernel.decisions[0].link == "plan"
    assert len(caplog.messages) == 1 and "made elsewhere" in caplog.text and "torch 2.0.0, here" in caplog.text


def test_a_plan_changed_on_disk_is_read_again(tmp_path: Path, path: str) -> None:
    with options.override(plan=path):
        kernels()(*arguments(32))
        again = kernels()
        written(Path(path), "b")
        again(*arguments(32))
    assert again.decisions[0].candidate == "b"


def test_saving_before_anything_ran_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytile.compiler.plans._oldest_first", list)
    with pytest.raises(PlanError, match="no compiled program has chosen a kernel yet"):
        save_plan(tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_of_two_programs_that_disagree_the_younger_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = kernels(), kernels()
    for kernel, candidate in ((first, "b"), (second, "a")):
        with options.override(force=candidate):
            kernel(*arguments(32))
    monkeypatch.setattr("polytile.compiler.plans._oldest_first", lambda: [first, second])
    assert save_plan(tmp_path / "p") == 1
    assert Plan.read(tmp_path / "p").decisions[0].candidate == "a"
    assert "run kernel 'double' differently" in caplog.text


def test_the_option_names_the_file_that_is_missing(tmp_path: Path) -> None:
    with options.override(plan=str(tmp_path / "none")), pytest.raises(OptionError, match=r"option 'plan': .*not exist"):
        kernels()(*arguments(32))
