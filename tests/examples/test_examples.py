"""The examples: each runs, checks its own results and prints what is recorded beside it, up to numbers and choices."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import record_examples
from scripts.record_examples import EXAMPLES, FOLDER

SCRIPTS = sorted({run.script for runs in EXAMPLES.values() for run in runs})
CONTAINER, FLEET = "container/app", "fleet/fleet"
OTHERWISE = ("serving", "training", "quantised", "package/package", "autotuned")
"""What they show is tested elsewhere: the tutorials by tests/scripts/test_documents.py, int8 products in tests/behaviour,
packages in tests/packages, plans of autotuned kernels in tests/autotuner."""
PROGRAMS = [
    pytest.param(name, marks=pytest.mark.slow) if name in OTHERWISE else name
    for name in EXAMPLES
    if name not in (CONTAINER, FLEET)
]
BRIEFLY = {"POLYTILE_TUNE": "off", "POLYTILE_ISOLATION": "never"}
"""Options that save the time of measurements, which change neither what a program prints nor its results."""


def masked(text: str) -> list[str]:
    """Its lines without numbers, and without what was chosen at which times."""
    lines = [re.sub(r"-> .*", "-> ...", line) for line in text.strip().splitlines()]
    return [re.sub(r"\d[\d.]*", "#", line) for line in lines]


def recorded(name: str) -> list[str]:
    """What is recorded of each run, its command first."""
    heading, _, runs = (FOLDER / f"{name}.txt").read_text().partition("\n\n")
    assert heading.startswith("# ")
    return runs.split("\n\n")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_what_is_recorded(
    name: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, where torch is imported."""
    if name in ("triton_kernels", "autotuned") and importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton, which is not installed")
    for option in ("POLYTILE_STALL", "POLYTILE_ON_FAILURE", "POLYTILE_LEARNED"):
        monkeypatch.delenv(option, raising=False)
    for option, value in BRIEFLY.items():
        monkeypatch.setenv(option, value)
    run = EXAMPLES[name][0]
    monkeypatch.setattr("sys.argv", [run.script])
    runpy.run_path(str(FOLDER / run.script), run_name="__main__")
    told = f"{run}\n{capsys.readouterr().out}"
    assert {tuple(masked(told))} == {tuple(masked(text)) for text in recorded(name)}
    assert "failures" not in told or " 0 failures" in told


def test_an_image_without_a_compiler_serves_what_was_compiled_while_it_was_built(tmp_path: Path) -> None:
    warm, serve = told = [record_examples.output(run, tmp_path, BRIEFLY) for run in EXAMPLES[CONTAINER]]
    assert [masked(text) for text in told] == [masked(text) for text in recorded(CONTAINER)]
    assert "a compiler is installed" in warm and " 0 of 1 programs" in warm and " 0 failures" in warm
    assert "no compiler is installed" in serve and " 1 of 1 programs" in serve
    assert " 0 compiler runs" in serve and " 0 operators run as ATen calls, 0 failures" in serve


def test_a_program_of_an_image_says_what_it_needs(tmp_path: Path) -> None:
    def said(**variables: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "POLYTILE_CACHE_DIR"} | variables
        done = subprocess.run([sys.executable, FOLDER / f"{CONTAINER}.py"], env=environment, capture_output=True, text=True)
        assert done.returncode == 1
        return done.stderr.strip()

    assert said() == "Set POLYTILE_CACHE_DIR to an empty folder; run `app.py warm`, then `app.py`."
    assert said(POLYTILE_CACHE_DIR=str(tmp_path / "cache")) == f"{tmp_path / 'model.ptp'} is missing; run `app.py warm` first."


@pytest.mark.slow
def test_a_machine_that_takes_what_two_others_measured_measures_nothing_and_ships_a_package(tmp_path: Path) -> None:
    (run,) = EXAMPLES[FLEET]
    told = record_examples.output(run, tmp_path, {"POLYTILE_ISOLATION": "never"})
    assert [masked(told)] == [masked(text) for text in recorded(FLEET)]
    assert " 0 candidates timed\nmachine c ships" in told and not re.search(r"machine [ab].* 0 candidates", told)
    assert "machine d: no compiler is found; the package gives eager's results" in told


def test_every_script_is_run_and_every_record_has_its_script() -> None:
    assert SCRIPTS == sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.py"))
    assert sorted(f"{name}.txt" for name in EXAMPLES) == sorted(p.relative_to(FOLDER).as_posix() for p in FOLDER.rglob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_short_and_says_what_it_prints(script: str) -> None:
    text = (FOLDER / script).read_text()
    assert len(text.splitlines()) < 90
    assert "print" in (ast.get_docstring(ast.parse(text)) or "")
    assert f"]({script})" in (FOLDER / "README.md").read_text()
