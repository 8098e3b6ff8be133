"""`polytile tune`: files of problems, limits of time, bars on terminals."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from polytile.cli import tune
from polytile.tuning.progress import Step, report_step
from tests.cli.helpers import new_process, run
from tests.cli.test_tune import TARGET


@pytest.fixture
def folder(tmp_path: Path, empty_cache: Path) -> Iterator[Path]:
    new_process()
    (tmp_path / "target.py").write_text(TARGET)
    yield tmp_path
    new_process()


def test_a_file_of_problems_is_tuned_line_by_line(folder: Path) -> None:
    problems = folder / "problems.jsonl"
    problems.write_text(
        '{"target": "target.py:softmax", "shapes": ["20x300", "20x30"], "dtype": "bfloat16"}\n\n'
        '{"target": "target.py:cases"}\n'
    )
    result = run("tune", problems, "--quick")
    assert result.exit_code == 0, result.output
    assert "[1/4] bfloat16[20, 300]" in result.output and "[4/4] float32[300, 20]" in result.output
    assert "4 of 4 calls" in result.output


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"target": "target.py:gelu", "shapes": ["3x3"]}', "line 1: .* has no function 'gelu'"),
        ('{"target": "target.py:softmax", "shapes": ["3x3"], "device": "gpu"}', "can be made on the device 'gpu'"),
        ('{"shapes": ["3x3"]}', 'line 1 is no problem; write one as {"target"'),
        ('{"target": "target.py:softmax", "size": 3}', "line 1 is no problem"),
        ("softmax 3x3", "line 1 is no problem"),
        ("", "has no problems; write one a line"),
    ],
)
def test_a_file_of_problems_that_cannot_be_tuned_is_one_sentence(folder: Path, line: str, said: str) -> None:
    (folder / "problems.jsonl").write_text(line)
    result = run("tune", folder / "problems.jsonl")
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert re.search(said.replace("{", r"\{"), " ".join(result.output.split()))
    assert run("tune", folder / "none.jsonl").exit_code == 2


def test_when_the_seconds_are_over_no_further_call_is_made_and_what_was_measured_is_kept(folder: Path) -> None:
    result = run("tune", f"{folder / 'target.py'}:cases", "--seconds", "0.0001")
    assert result.exit_code == 0 and "Ended after 0.0001 s: 0 of 2 calls" in result.output
    assert "2 of 2 calls" in run("tune", f"{folder / 'target.py'}:cases", "--seconds", "100").output


def test_on_a_terminal_bars_show_all_calls_and_the_problem_under_way() -> None:
    out = io.StringIO()
    with tune._progress(Console(file=out, force_terminal=True, width=160), 2) as told:
        report_step(Step("softmax", (("n0", 64),), 3, 1, "persistent t2", "looped t1", 5.73e-6, 8.0))
        told("float32[64, 512]: 1 choice")
    text = out.getvalue()
    assert "calls" in text and "softmax n0=64: persistent t2, best looped t1 5.73 µs, 8 s left" in text
    assert "float32[64, 512]: 1 choice" in text and "1/2" in text
