"""What others see of how the project is tested: workflows and make targets say what is so."""

from __future__ import annotations

import re
from pathlib import Path

from polytile.version import __version__
from scripts import setup_env

ROOT = Path(__file__).parents[2]
WORKFLOW = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def matrix(name: str) -> list[str]:
    found = re.search(rf"^ +{name}: \[(.*)\]$", WORKFLOW, re.MULTILINE)
    assert found
    return re.findall(r'"([^"]+)"', found[1])


def test_the_workflow_tests_every_python_that_the_package_names() -> None:
    assert matrix("python") == re.findall(r"Python :: (3\.\d+)", PROJECT)


def test_the_workflow_tests_the_oldest_torch_the_pinned_one_and_the_newest() -> None:
    pinned = ".".join(setup_env.pinned("torch").split("==")[1].split(".")[:2])
    assert matrix("torch") == [".".join(map(str, setup_env.MINIMUM_TORCH)), pinned, "newest"]
    assert setup_env.TRITON in WORKFLOW


def test_files_that_the_workflow_runs_are_there() -> None:
    named = re.findall(r"[\w/]+\.(?:py|sh)\b", WORKFLOW)
    assert named and all((ROOT / name).is_file() for name in named)


def test_make_help_names_every_target() -> None:
    shown = set(re.findall(r"^# make ([\w-]+)", MAKEFILE, re.MULTILINE))
    defined = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.MULTILINE))
    phony = set((re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE) or [""] * 2)[1].split())
    assert shown | {"help"} == defined == phony
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    assert not [name for name in defined if f"`make {name}`" not in contributing]


def test_the_changelog_has_the_version_of_the_package() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert versions[0] == "Unreleased" and __version__ in versions
    sections = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
