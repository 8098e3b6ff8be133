"""`polytile why FILE.py:FUNCTION`: what runs each kernel of a program, with nothing measured for the answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polytile import counters
from tests.cli.helpers import new_process, run

KERNELS = """
import torch


def smooth(x):
    return torch.softmax(x, -1)


def cases():
    return smooth, [(torch.ones(64, 512),)]


def product(x, y):
    return x @ y


def broken(x):
    raise ValueError("no such thing")
"""


@pytest.fixture
def kernels(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("POLYTILE_STALL", raising=False)
    new_process()
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    yield path
    new_process()


def test_what_was_measured_is_the_answer_with_the_others_times(kernels: Path) -> None:
    assert run("tune", f"{kernels}:cases", "--quick").exit_code == 0
    new_process()
    measured = counters["candidates_benchmarked"]
    result = run("why", f"{kernels}:smooth", "--shapes", "64x512")
    assert result.exit_code == 0, result.output
    assert "at n0=64 n1=512 → " in result.output and "measured before, at these sizes" in result.output
    assert "persistent t1" in result.output and "1.00" in result.output
    assert counters["candidates_benchmarked"] == measured


def test_what_was_not_is_answered_by_the_prediction_and_by_what_is_nearest(kernels: Path) -> None:
    assert run("tune", f"{kernels}:cases", "--quick").exit_code == 0
    new_process()
    result = run("why", f"{kernels}:smooth", "--shapes", "3000x40")
    assert result.exit_code == 1
    assert "at n0=3000 n1=40 → " in result.output and "predicted" in result.output
    assert "the nearest measurement is at n0=64 n1=512" in result.output
    assert "size n1: measured at 512, asked for 40" in result.output


def test_with_an_empty_store_the_prediction_stands_alone(kernels: Path) -> None:
    result = run("why", f"{kernels}:cases")
    assert result.exit_code == 1, result.output
    assert "predicted" in result.output and "nearest" not in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("smooth",), "give --shapes"),
        (("smooth", "64", "512"), "give --shapes in place of 64 512"),
        (("nothing", "--shapes", "4x4"), "has no function 'nothing'"),
        (("broken", "--shapes", "4x4"), "cannot be called: ValueError: no such thing"),
        (("product", "--shapes", "4x5,6x7"), "cannot be called: RuntimeError: a and b must have same reduction dim"),
        (("product", "--shapes", "4x4,5x4"), "must have same reduction dim"),
    ],
)
def test_what_cannot_be_asked_is_said(kernels: Path, words: tuple[str, ...], said: str, caplog: pytest.LogCaptureFixture) -> None:
    result = run("why", f"{kernels}:{words[0]}", *words[1:])
    assert result.exit_code == 2 and said in result.output, result.output
    assert not [record for record in caplog.records if record.levelname == "ERROR"], "torch logs no traceback besides"
