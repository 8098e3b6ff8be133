"""The documents: what they name is there, and the Python in them runs."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import re
import sys
from pathlib import Path

import pytest
import typer

import polytile.cli.app
from polytile import options
from scripts import errors_page, update_readme
from tests.scripts.documents import DOCUMENTS, ROOT, anchors, blocks, skeleton
from tests.scripts.running import printed

by_document = pytest.mark.parametrize("document", sorted(DOCUMENTS), ids=lambda path: str(path.relative_to(ROOT)))


def python_in(document: Path) -> list[str]:
    return [block.text for block in blocks(str(document.relative_to(ROOT))) if block.language == "python"]


@by_document
def test_links_lead_to_files(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    missing = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert not missing


@by_document
def test_links_lead_to_headings_and_anchors(document: Path) -> None:
    missing = []
    for page, anchor in re.findall(r"\]\(([^)#\s]*\.md|)#([^)\s]+)\)", document.read_text()):
        target = document.parent / page if page else document
        if "://" not in page and anchor not in anchors(target.read_text()):
            missing.append(f"{page}#{anchor}")
    assert not missing


def test_pages_that_the_code_names_are_there() -> None:
    """In docstrings and messages, as docs/cuda.md or docs/cuda.md#other-gpus."""
    missing = []
    for path in (file for folder in ("src", "benchmarks", "scripts", "examples") for file in (ROOT / folder).rglob("*.py")):
        for page, anchor in re.findall(r"\bdocs/([\w/-]+\.md)(?:#([\w-]+))?", path.read_text()):
            target = ROOT / "docs" / page
            if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
                missing.append(f"{path.name}: {page}#{anchor}")
    assert not missing


def test_every_option_has_an_anchor() -> None:
    assert {option.name for option in options.TABLE} <= anchors((ROOT / "docs" / "options.md").read_text())


def test_every_error_has_an_anchor() -> None:
    assert {error.__name__ for error in errors_page.catalogue()} <= anchors(errors_page.PAGE.read_text())


def test_every_command_has_an_anchor() -> None:
    """Those of a group have its name before theirs."""
    commands = typer.main.get_command(polytile.cli.app.app)
    names = [("polytile", name) for name in commands.commands]  # type: ignore[attr-defined]
    names += [
        ("polytile", group, name)
        for group, command in commands.commands.items()  # type: ignore[attr-defined]
        for name in getattr(command, "commands", ())
    ]
    assert {"-".join(name) for name in names} <= anchors((ROOT / "docs" / "commands.md").read_text())


@by_document
def test_source_files_named_are_there(document: Path) -> None:
    """By their whole path or the end of it, as in `passes/split_axes.py`."""
    named = re.findall(r"`([\w/]+\.(?:py|c|h))`", document.read_text())
    assert not [name for name in named if name != "kernels.py" and not any(f.endswith(f"/{name}") for f in source_files())]


@functools.cache
def source_files() -> tuple[str, ...]:
    folders = ("src", "benchmarks", "examples", "scripts", "tests")
    return tuple(path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*.*"))


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


SHOWS_OUTPUT = {"first-model.md", "training.md", "serving.md"}
"""Pages whose blocks of text are what their program prints; those of looking-inside.md are parts of logs."""


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
    told = printed(path) + (printed(path) if page == "first-model.md" else "")  # a second process finds what the first measured
    assert re.search(said, told)
    shown = [line for block in blocks(f"docs/{page}") if block.language == "text" for line in skeleton(block.text)]
    assert page not in SHOWS_OUTPUT or not [line for line in shown if line not in skeleton(told)]


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

ATTENTION = [f"benchmarks/results/gpu_attention{name}.json" for name in ("", "_specialised")]
TABLES = {
    ("README.md", "overview"): ("overview",),
    ("docs/cpu-loops.md", "loops"): ("overview", "--of", "loops"),
    ("benchmarks/README.md", "models"): ("overview", "--of", "models"),
    ("docs/cuda-results.md", "gpu"): ("gpu.__main__", "--show", "benchmarks/results/gpu.json"),
    ("docs/products-results.md", "gpu_gemm"): ("gpu.gemm", "--show", "benchmarks/results/gpu_gemm.json"),
    ("docs/products-results.md", "gpu_models"): ("gpu.models", "--show", "benchmarks/results/gpu_models.json"),
    ("docs/cuda-graphs.md", "gpu_whole_calls"): ("gpu.whole_calls", "--show", "benchmarks/results/gpu_whole_calls.json"),
    ("docs/convolutions.md", "gpu_convolutions"): ("gpu.convolutions", "--show", "benchmarks/results/gpu_convolutions.json"),
    ("docs/convolutions.md", "gpu_convolutions_backward"): (
        "gpu.convolutions", "--backward", "--show", "benchmarks/results/gpu_convolutions_backward.json",
    ),
    ("docs/attention.md", "gpu_attention_dropout"): ("gpu.attention_dropout", "--show"),
    ("docs/attention-results.md", "gpu_attention_decode"): (
        "gpu.attention_kernels", "--parts", "decode", "--show", "benchmarks/results/gpu_attention_decode.json",
    ),
    ("docs/attention-results.md", "attention_cpu"): ("attention_cpu", "--show"),
    ("docs/attention-results.md", "gpu_attention"): ("gpu.attention_kernels", "--show", *ATTENTION),
    ("docs/attention-results.md", "gpu_attention_backward"): (
        "gpu.attention_backward", "--show", "benchmarks/results/gpu_attention_backward.json",
    ),
    ("docs/attention-results.md", "gpu_attention_layouts"): ("gpu.attention_layouts", "--show"),
    ("docs/autotune.md", "gpu_autotune"): ("gpu.autotune", "--show"),
    ("docs/autotune.md", "gpu_public_kernels"): ("gpu.public_kernels", "--show"),
    ("docs/autotune.md", "gpu_autotune_unseen"): ("gpu.autotune_unseen", "--show"),
    ("docs/autotune.md", "autotune_replay"): ("autotune_replay", "--show"),
    ("docs/calls.md", "wrapper_cpu"): ("wrapper", "--show"),
    ("docs/calls.md", "arena"): ("arena", "--show"),
    ("docs/campaigns.md", "gpu_campaign"): ("gpu.campaign", "--show"),
    ("docs/costs.md", "first_calls"): ("first_calls", "--show"),
    ("docs/costs.md", "stream"): ("stream.__main__", "--show"),
    ("docs/cuda-experiments.md", "gpu_revisions"): ("gpu.revisions", "--show"),
    ("docs/cuda-prior.md", "chosen"): ("gpu.chosen",),
    ("docs/learning.md", "learned"): ("learned", "--show"),
    ("docs/packages.md", "packages"): ("packages", "--show"),
    ("docs/products-results.md", "gpu_cutlass"): ("gpu.cutlass", "--show"),
    **{
        ("docs/products-results.md", f"gpu_cutlass_{suite}"): ("gpu.cutlass", "--suite", f"gpu_cutlass_{suite}", "--show")
        for suite in ("epilogues", "blocks", "long", "mixed")
    },
    ("docs/products-results.md", "quantised_cuda"): ("quantised", "--device", "cuda", "--show"),
    ("docs/products-results.md", "gpu_grouped"): ("gpu.grouped", "--show"),
    ("docs/addressing.md", "gpu_addressing"): ("gpu.addressing", "--show", "benchmarks/results/gpu_addressing.json"),
    ("docs/store.md", "store_rate"): ("store_rate", "--show"),
    ("docs/campaigns.md", "campaign_fleet"): ("campaign_fleet", "--show"),
    ("docs/cpu-products.md", "amx"): ("amx", "--show"),
    ("docs/cpu-products.md", "experts"): ("experts", "--show"),
    ("docs/cpu-products.md", "quantised"): ("quantised", "--device", "cpu", "--show"),
    ("docs/report.md", "report_rate"): ("report_rate", "--show"),
    ("docs/report.md", "reports"): ("reports", "--show"),
    ("docs/tuning-experiments.md", "search"): ("search", "--show"),
    ("docs/tuning-experiments.md", "campaign_agreement"): ("campaign_agreement", "--show"),
}
"""By page and markers, what prints the tables between them from committed results."""


@pytest.mark.parametrize(("place", "command"), TABLES.items(), ids=[name for _, name in TABLES])
def test_tables_are_what_the_benchmarks_print(
    place: tuple[str, str], command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, name = place
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", list(command))
    with contextlib.suppress(SystemExit):  # by which --show ends
        importlib.import_module(f"benchmarks.{command[0]}").main()
    text = (ROOT / page).read_text()
    assert update_readme.replaced(text, name, capsys.readouterr().out) == text

