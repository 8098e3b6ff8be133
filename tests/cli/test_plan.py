"""`polytile plan`: files shown and compared."""

from __future__ import annotations

from pathlib import Path

from polytile.dispatch.planfile import Pinned, Plan, here
from polytile.facts import read_regime
from tests.cli.helpers import run


def pinned(regime: str, candidate: str, source: str = "s") -> Pinned:
    return Pinned("softmax_1f0c", read_regime(regime), candidate, source, "1f0c", ("float32",), (), (("M", 64),))


def test_show_lists_what_is_pinned_and_where_it_was_made(tmp_path: Path) -> None:
    plan = Plan((pinned("M=64..90%16", "looped t2"),), here())
    plan.write(tmp_path / "p")
    output = run("plan", "show", tmp_path / "p").output
    assert "| softmax_1f0c | M=64..90%16 | looped t2 | M=64         |" in output and "like this one" in output
    Plan(plan.decisions, {**here(), "torch": "2.0"}).write(tmp_path / "p")
    assert "Made elsewhere: torch 2.0, here" in run("plan", "show", tmp_path / "p").output


def test_diff_shows_what_differs_and_has_a_status_as_diff_has(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    Plan((pinned("M=1", "a"), pinned("M=2", "a"), pinned("M=3", "a"), pinned("M=5", "a")), {}).write(old)
    Plan((pinned("M=1", "a"), pinned("M=2", "b"), pinned("M=4", "a"), pinned("M=5", "a", "edited")), {}).write(new)
    result = run("plan", "diff", old, new)
    rows = [
        [cell.strip() for cell in line.split("|")[2:-1]] for line in result.output.splitlines() if "| softmax" in line
    ]
    expected = [["M=2", "a", "b"], ["M=3", "a", "–"], ["M=4", "–", "a"], ["M=5", "a", "a, from another source"]]
    assert result.exit_code == 1 and rows == expected
    same = run("plan", "diff", old, old)
    assert same.exit_code == 0 and "pin the same kernels" in same.output


def test_a_missing_plan_or_another_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("{}")
    for file, said in (("none", "does not exist"), ("foreign", "is no plan file")):
        result = run("plan", "show", tmp_path / file)
        assert result.exit_code == 2 and said in result.output and "Traceback" not in result.output
