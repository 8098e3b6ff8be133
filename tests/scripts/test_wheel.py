"""The wheel: built without a compiler, it holds the whole package, and works where it alone is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts import setup_env

ROOT = Path(__file__).parents[2]

PROGRAM = """
import torch, polytile

compiled = torch.compile(lambda x: torch.softmax(x * 2, -1), backend="polytile", dynamic=True)
x = torch.randn(30, 70)
for _ in range(2):
    torch.testing.assert_close(compiled(x), torch.softmax(x * 2, -1))
    polytile.wait()
print(polytile.__file__, polytile.counters["compiler_runs"] > 0, polytile.counters["failures"])
"""


def without(*names: str, **others: str) -> dict[str, str]:
    """The environment of a process that knows neither this working tree nor the options of tests."""
    hidden = {"PYTHONPATH", *names}
    return {n: value for n, value in os.environ.items() if n not in hidden and not n.startswith("POLYTILE_")} | others


def required(wheel: Path) -> set[str]:
    """The distributions that the wheel asks for without any extra, those that they ask for, and so on."""
    (metadata,) = importlib.metadata.distributions(path=[str(wheel)])
    found: set[str] = set()
    asked = list(metadata.requires or ())
    while asked:
        requirement = Requirement(asked.pop())
        marked = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if marked and requirement.name not in found:
            found.add(requirement.name)
            asked += importlib.metadata.requires(requirement.name) or ()
    return found


def lent(names: set[str], site: Path) -> None:
    """Links to the files of these distributions of this environment, as if they alone were installed in `site`."""
    for name in names:
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, as a build leaves files among the sources, by a process that finds no program on its PATH."""
    if importlib.util.find_spec("pip") is None or importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs pip and setuptools, which are not installed")
    if setup_env.release(importlib.metadata.version("setuptools")) < (77, 0, 3):
        pytest.skip("needs setuptools 77.0.3 or newer, as pyproject.toml says")
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    leftovers = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=leftovers)
    (folder / "empty").mkdir()
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", "dist", "."]
    environment = without("CC", "CXX", PATH=str(folder / "empty"), PIP_DISABLE_PIP_VERSION_CHECK="1")
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (folder / "dist").iterdir()
    return built


def test_a_wheel_for_every_platform_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    package = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src" / "polytile").rglob("*.*") if p.is_file()}
    package = {name for name in package if "__pycache__" not in name}
    assert {name for name in held if ".dist-info/" not in name} == package
    assert {".py", ".c", ".h", ".json", ".typed"} <= {Path(name).suffix for name in package}
    assert wheel.name.endswith("-py3-none-any.whl")
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in held)


@pytest.mark.slow
def test_an_installed_wheel_compiles_a_function_and_the_doctor_finds_nothing_bad(wheel: Path, tmp_path: Path) -> None:
    """In an environment that has what the wheel asks for and nothing else: pip resolves its requirements against that."""
    venv.create(tmp_path / "env", with_pip=False)
    python, site = tmp_path / "env" / "bin" / "python", sysconfig.get_path("purelib", vars={"base": str(tmp_path / "env")})
    lent(required(wheel), Path(site))
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    for command in (["install", "--no-index", str(wheel)], ["check"]):
        done = subprocess.run([*pip, *command], env=without(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    environment = without(POLYTILE_CACHE_DIR=str(tmp_path / "cache"))

    def told(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert told(str(python), "-c", PROGRAM).split() == [f"{site}/polytile/__init__.py", "True", "0"]
    report = told(str(python.parent / "polytile"), "doctor")
    assert "C++ compiler" in report and "| bad" not in report
    backend = next(line for line in report.splitlines() if "torch.compile backend" in line)
    assert " ok " in backend
