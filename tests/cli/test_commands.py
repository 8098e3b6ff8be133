"""The command line: what a person who types `polytile` sees, and the status a script gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import polytile
from polytile.cli import doctor
from polytile.cli.app import app

run = CliRunner().invoke


def finding(name: str) -> doctor.Finding:
    return next(found for found in doctor.examine().findings if found.subject == name)


def test_version() -> None:
    result = run(app, ["--version"])
    assert result.exit_code == 0 and result.output.strip() == f"polytile {polytile.__version__}"


@pytest.mark.parametrize("words", [[], ["why"], ["tune"], ["doctor"], ["store"], ["store", "ls"], ["plan", "diff"]], ids=" ".join)
def test_help_is_asked_for_in_two_ways_everywhere(words: list[str]) -> None:
    short, long = run(app, [*words, "-h"]), run(app, [*words, "--help"])
    assert short.exit_code == long.exit_code == 0 and short.output == long.output and "Usage" in short.output


def test_a_command_says_first_which_variable_has_a_bad_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_REFINE", "lots")
    result = run(app, ["configs", "cpu", "64", "64", "64"])
    assert result.exit_code == 2 and "environment variable POLYTILE_REFINE) is 'lots'" in result.output


def test_a_command_names_a_package_that_it_needs_and_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def examine() -> None:
        raise ModuleNotFoundError(name="torch")

    monkeypatch.setattr(doctor, "examine", examine)
    result = run(app, ["doctor"])
    assert result.exit_code == 2
    assert result.output == "polytile: this command needs torch, which is not installed; see `polytile doctor`.\n"


def test_doctor_reports_every_subject_and_succeeds(empty_cache: Path) -> None:
    result = run(app, ["doctor"])
    assert result.exit_code == 0, result.output
    for subject in ("Python", "PyTorch", "processor", "C++ compiler", "cache directory", "store", "options"):
        assert subject in result.output
    assert str(empty_cache) in result.output


def test_doctor_says_what_to_do_without_a_compiler(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(empty_cache))
    monkeypatch.delenv("CXX", raising=False)
    found = finding("C++ compiler")
    assert found.verdict == "fair" and "library call" in found.found and "Install" in found.advice


def test_doctor_counts_files_set_aside_as_damaged(empty_cache: Path) -> None:
    (empty_cache / "kernels").mkdir()
    (empty_cache / "kernels" / "softmax.so.bad").write_bytes(b"?")
    found = finding("cache directory")
    assert found.verdict == "fair" and "1 set aside" in found.found


def test_doctor_says_whether_the_store_can_be_read_and_never_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_STORE", "postgresql://me:secret@127.0.0.1:1/kernels")
    found = finding("store")
    assert found.verdict == "fair" and "postgresql://me:***@127.0.0.1:1/kernels" in found.advice
    assert "secret" not in "".join(f.found + f.advice for f in doctor.examine().findings)


def test_doctor_notices_a_variable_that_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_DEBUGG", "1")
    assert "POLYTILE_DEBUGG" in finding("options").advice


def test_a_bad_option_is_a_finding_not_a_crash_and_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_SHORTLIST", "many")
    found = doctor.settings()
    assert found.verdict == "bad" and "shortlist" in found.advice
    assert run(app, ["doctor"]).exit_code == 1
