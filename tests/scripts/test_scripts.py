"""The scripts around the package: the environment's pins, and putting a program's output into a document."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from scripts import house, removed, sanitize, sanitize_host, setup_env, update_readme


def test_versions_compare_by_their_leading_numbers() -> None:
    assert setup_env.release("2.11.0+cu130") == (2, 11, 0) >= setup_env.MINIMUM_TORCH
    assert setup_env.release("2.9.1") < setup_env.MINIMUM_TORCH
    assert setup_env.release("") < setup_env.MINIMUM_TORCH


def test_every_dependency_is_pinned() -> None:
    project = (setup_env.ROOT / "pyproject.toml").read_text()
    extras = ["triton"]  # comes with PyTorch, which pins it
    listed = project[project.index("dependencies = [") : project.index("[project.entry-points")]
    names = {match[1] for match in re.finditer(r'"([A-Za-z0-9-]+)(?:\[\w+\])?>=', listed)}
    assert {"torch", "pytest", "transformers"} <= names
    for name in sorted(names.difference(extras)):
        assert setup_env.pinned(name)
    with pytest.raises(SystemExit, match="pins no version of nothing"):
        setup_env.pinned("nothing")


def test_text_between_markers_is_replaced_and_the_rest_kept() -> None:
    document = "a\n<!-- demo:begin -->\nold\n<!-- demo:end -->\nb\n"
    once = update_readme.replaced(document, "demo", "new\n")
    assert once == "a\n<!-- demo:begin -->\n\nnew\n\n<!-- demo:end -->\nb\n"
    assert update_readme.replaced(once, "demo", "new\n") == once


@pytest.mark.parametrize("document", ["", "<!-- demo:begin -->", "<!-- demo:end --> <!-- demo:begin -->"])
def test_a_document_without_a_pair_of_markers_is_refused(document: str) -> None:
    with pytest.raises(ValueError, match="needs one line"):
        update_readme.replaced(document, "demo", "new")


def test_the_sanitizer_is_found_on_the_path_and_beside_the_toolkit(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / sanitize.TOOL
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    assert not sanitize.find({"PATH": str(tool.parent)})  # it cannot be run
    tool.chmod(0o755)
    assert sanitize.find({"PATH": str(tool.parent)}) == str(tool)
    assert sanitize.find({"PATH": "", "CUDA_HOME": str(tmp_path)}) == str(tool)
    assert "CUDA toolkit" in sanitize.missing("", gpu=True)
    assert "no CUDA device" in sanitize.missing(str(tool), gpu=False) and not sanitize.missing(str(tool), gpu=True)


def test_the_sanitizer_looks_at_generated_kernels_and_its_finding_is_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a tool that finds something in racecheck alone."""
    tool = tmp_path / sanitize.TOOL
    log = tmp_path / "log"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {log}\n[ "$2" = racecheck ] && exit {sanitize.FOUND}\nexit 0\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("sys.argv", ["sanitize", "-q"])
    assert sanitize.main() == 1
    told = capsys.readouterr().out
    assert "memcheck: nothing found." in told and "racecheck: found something" in told
    memcheck, racecheck = log.read_text().splitlines()
    assert memcheck.startswith("--tool memcheck") and racecheck.startswith("--tool racecheck")
    assert "kernel_substring=polytile_ " in memcheck and memcheck.endswith("-q")
    log.unlink()
    monkeypatch.setattr("sys.argv", ["sanitize", "--brief", "--jobs", "3", "--tools", "racecheck"])
    assert sanitize.main() == 1
    shares = [re.findall(r"tests/gpu/\S+::.*?(?= tests/gpu|$)", line) for line in log.read_text().splitlines()]
    assert len(shares) == 3 and len({test for share in shares for test in share}) == sum(map(len, shares)) > 20
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert sanitize.main() == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_sanitizers_of_the_host_cover_every_c_file_of_the_runtime() -> None:
    assert sanitize_host.uncovered() == []
    named = {test for tests in sanitize_host.COVERED.values() for test in tests}
    named |= {test for sanitizer in sanitize_host.SANITIZERS.values() for test in sanitizer.tests}
    assert not [test for test in named if not (sanitize_host.ROOT / test).exists()]


MOVED = """\
def total(values):
    answer = 0
    for value in values:
        if value > 0:
            answer += value
    return answer
"""
GONE = """\
def text(name):
    with open(name) as file:
        lines = file.read().split()
    lines.sort()
    last = lines[-1]
    return last
"""


def package(folder: Path, **modules: str) -> Path:
    """A package of one room, with these modules."""
    room = folder / "room"
    room.mkdir(parents=True)
    for name, text in modules.items():
        (room / f"{name}.py").write_text(text)
    return folder


def test_the_structure_of_any_package_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = "from polytile.room import b\n\nx = 1\n", "from polytile.room import a\n"
    house.print_structure(package(tmp_path, a=one, b=other))
    printed = capsys.readouterr().out
    assert "2 files, 4 lines, 1 of code, 2 arrows" in printed and "a circle: room.a, room.b" in printed


def test_a_revision_that_git_does_not_know_is_refused() -> None:
    with pytest.raises(SystemExit, match="no package at 'nothing'"), house.package_at("nothing"):
        pass


def test_what_is_gone_is_told_from_what_was_moved_or_renamed(tmp_path: Path) -> None:
    before = package(tmp_path / "before", a=f"{MOVED}\n\n{GONE}")
    after = package(tmp_path / "after", b=MOVED.replace("total", "sum_of_positive"))
    assert [(each.module, each.name, len(each.code)) for each in removed.removed(before, after)] == [("room.a", "text", 6)]
