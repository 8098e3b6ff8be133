"""The documents: what they name is there, and the Python in them runs."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from polytile import options
from scripts import errors_page, update_readme

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *ROOT.glob("*.md"), *(ROOT / "benchmarks").glob("*.md"),
    *(path for folder in ("docs", "examples", ".github") for path in (ROOT / folder).rglob("*.md")),
]  # fmt: skip
by_document = pytest.mark.parametrize("document", sorted(DOCUMENTS), ids=lambda path: str(path.relative_to(ROOT)))


def python_in(document: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)


@by_document
def test_links_lead_to_files(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert not missing


@by_document
def test_links_within_a_page_lead_to_headings(document: Path) -> None:
    text = document.read_text()
    headings = {re.sub(r"[^\w -]", "", found).lower().replace(" ", "-") for found in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    assert not [anchor for anchor in re.findall(r"\]\(#([^)]+)\)", text) if anchor not in headings]


@by_document
def test_source_files_named_are_there(document: Path) -> None:
    """By their whole path or the end of it, as in `passes/split_axes.py`."""
    folders = ("src", "benchmarks", "examples", "scripts", "tests")
    files = [path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*.*")]
    named = re.findall(r"`([\w/]+\.(?:py|c|h))`", document.read_text())
    assert not [name for name in named if name != "kernels.py" and not any(f.endswith(f"/{name}") for f in files)]


OF_TESTS = {"ACCEPT", "TEST_DEVICE"}
"""Variables that the tests alone read."""


@by_document
def test_variables_named_are_options(document: Path) -> None:
    named = set(re.findall(r"\bPOLYTILE_([A-Z_]*[A-Z])", document.read_text()))
    assert not [name for name in named - OF_TESTS if name.lower() not in options.BY_NAME]


@pytest.mark.parametrize("index", [ROOT / "docs" / "README.md", ROOT / "docs" / "decisions" / "README.md"], ids=str)
def test_an_index_names_every_page(index: Path) -> None:
    others = (page.name for page in index.parent.glob("*.md") if page != index)
    assert not [name for name in others if f"]({name})" not in index.read_text()]


def test_the_readme_fits_on_a_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_page_of_errors_is_made_from_the_classes() -> None:
    assert errors_page.PAGE.read_text() == errors_page.as_markdown(), "stale: run python -m scripts.errors_page"


@by_document
def test_python_is_python(document: Path) -> None:
    for code in python_in(document):
        ast.parse(code)


def test_the_readmes_program_runs_and_names_what_it_chose(tmp_path: Path) -> None:
    path = tmp_path / "readme.py"
    path.write_text("\n".join(python_in(ROOT / "README.md")))
    told = printed(path)
    # of sizes that came often there may be a decision of their own besides that of their regime
    assert len(set(re.findall(r"^  addmm_\w+ \[batch=1, M=\d+, N=1024, K=256", told, re.MULTILINE))) == 3
    assert len(set(re.findall(r"^  var_mean_\w+ \[n0=\d+\] → ", told, re.MULTILINE))) == 3


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("first-model.md", r"1 graph, \d+ candidates timed"),
        ("training.md", r"(eager [\d.]+, polytile [\d.]+\n){4}"),
        ("serving.md", r"0 failures, 0 ATen call sites"),
        ("looking-inside.md", r"mm_\w+ \[batch=1, M=32, N=40, K=48\] → "),
        ("commands.md", ""),
        ("campaigns.md", ""),
        ("configs.md", ""),
    ],
)
def test_the_python_of_a_tutorial_is_a_program_that_runs(page: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "page.py"
    path.write_text("\n".join(python_in(ROOT / "docs" / page)))
    assert re.search(said, printed(path))


def test_the_page_of_kernels_runs_and_chooses(tmp_path: Path) -> None:
    """The first piece is a script of its own; the others go into it."""
    script, *inside = python_in(ROOT / "docs" / "kernels.md")
    path = tmp_path / "kernels.py"
    called = "".join(inside) + "\nassert compiled(x, weight).shape == x.shape\n"
    path.write_text(script + "\n" + "".join(f"    {line}\n" for line in called.splitlines()))
    assert "rms_norm [M=8, N=4096] -> " in printed(path)


def test_the_page_on_extending_runs_and_what_it_registers_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "extension.py"
    asked = "x = torch.randn(3000, 33); f(x); polytile.wait(); print(polytile.explain(f, x))"
    path.write_text("\n".join([*python_in(ROOT / "docs" / "extending.md"), asked]))
    told = printed(path)
    assert "inference0 calls 1 kernels" in told
    assert "t1: predicted by fewest threads for short rows" in told

TABLES = {
    ("README.md", "overview"): ("overview",),
    ("docs/cpu-loops.md", "loops"): ("overview", "--of", "loops"),
    ("benchmarks/README.md", "models"): ("overview", "--of", "models"),
    ("docs/cuda-results.md", "gpu"): ("gpu.__main__", "--show", "benchmarks/results/gpu.json"),
    ("docs/products-results.md", "gpu_gemm"): ("gpu.gemm", "--show", "benchmarks/results/gpu_gemm.json"),
    ("docs/products-results.md", "gpu_models"): ("gpu.models", "--show", "benchmarks/results/gpu_models.json"),
    ("docs/addressing.md", "gpu_addressing"): ("gpu.addressing", "--show", "benchmarks/results/gpu_addressing.json"),
    ("docs/store.md", "store_rate"): ("store_rate", "--show"),
}
"""By page and markers, what prints the tables between them from committed results."""


@pytest.mark.parametrize(("place", "command"), TABLES.items(), ids=[name for _, name in TABLES])
def test_tables_are_what_the_benchmarks_print(
    place: tuple[str, str], command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, name = place
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", list(command))
    importlib.import_module(f"benchmarks.{command[0]}").main()
    text = (ROOT / page).read_text()
    assert update_readme.replaced(text, name, capsys.readouterr().out) == text


def printed(script: Path) -> str:
    """What the script prints, run as a reader would: without the options that tests set."""
    environment = {name: value for name, value in os.environ.items() if name not in ("POLYTILE_STALL", "POLYTILE_ON_FAILURE")}
    environment["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), environment.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=script.parent, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
