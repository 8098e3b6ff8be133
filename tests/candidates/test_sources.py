"""Sources of candidates: polytile's own and those that packages bring take part alike."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

import polytile
from polytile import options
from polytile.candidates import products, sources
from polytile.candidates.candidate import Candidate
from polytile.candidates.sources import ProductRequest, Source
from polytile.errors import OptionError, SourceError
from polytile.tuning.decide import place_of
from tests.behaviour.helpers import check, compiled, multikernels, sized
from tests.codegen.triton_gemm import product

PACKAGE = '''
"""A package that multiplies in two halves of the rows."""

import torch

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import PythonEntry
from polytile.candidates.sources import Source
from polytile.matmul.gemm_args import operands
from polytile.problem import Config, digest


class Halves(Candidate):
    name, origin, config = "halves", "halves", Config()

    def __init__(self, kernel):
        self.kernel = kernel

    @property
    def source_hash(self):
        return digest(f"halves 1 {self.kernel.text}")

    def valid(self, sizes):
        return sizes["M"] >= 2

    def cost(self, sizes):
        return 1e-9  # so that it is chosen where nothing is measured

    def entry(self):
        return PythonEntry(self.call)

    def call(self, *args):
        tensors, _ = operands(self.kernel, args)
        a, b, c = (tensors[name] for name in "ABC")
        rows = a.shape[1] // 2
        c[:, :rows] = torch.matmul(a[:, :rows], b)
        c[:, rows:] = torch.matmul(a[:, rows:], b)


class HalvesSource(Source):
    name = "halves"

    def products(self, asked):
        kernel = asked.kernel
        plain = kernel.epilogue is None and not any(kernel.prologues) and kernel.second is None and kernel.scales is None
        return [Halves(kernel)] if plain and kernel.in_dtype.is_floating_point else []
'''


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with an entry point."""
    (tmp_path / "halves_package.py").write_text(PACKAGE)
    known = tmp_path / "halves_package-1.0.dist-info"
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: halves-package\nVersion: 1.0\n")
    (known / "entry_points.txt").write_text(
        textwrap.dedent("""
            [polytile.sources]
            halves = halves_package:HalvesSource
            broken = halves_package:Missing
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    sources._entries.cache_clear()
    yield
    sources.unregister("halves")
    sources._entries.cache_clear()


def test_a_package_brings_a_source_by_an_entry_point(brought: None, caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    def chosen() -> set[str]:
        asked = [kernel for kernel in multikernels() if any(candidate.name == "halves" for candidate in kernel.candidates)]
        return {decision.candidate for kernel in asked for decision in kernel.decisions}

    run = compiled(function, sources="halves, library", tune="off")
    for m, n, k in ((6, 5, 7), (33, 20, 14)):
        check(function, run, *sized((m, k), (k, n)))
    assert chosen() == {"halves"}
    check(function, run, *sized((1, 7), (7, 5)))
    assert chosen() == {"halves", "aten"}, "one row is none of its sizes"
    assert "The source broken (halves_package:Missing) is left out" in caplog.text
    with pytest.raises(OptionError, match="choose one or more from triton, library, cpp, .*halves"):
        options.check({"sources": "halves, thirds"})


class Fails(Source):
    name, origins = "fails", ("fails fast",)

    def products(self, asked: ProductRequest) -> Sequence[Candidate]:
        raise OSError("no such table")


@pytest.fixture
def fails() -> Iterator[Fails]:
    source = Fails()
    polytile.register_source(source)
    yield source
    sources.unregister("fails")


def test_a_source_that_fails_takes_no_part_and_is_told(fails: Fails, caplog: pytest.LogCaptureFixture) -> None:
    found = products.candidates(product(torch.float32), "product", (1,), None, ("fails",))
    assert [candidate.name for candidate in found] == ["aten"], "nothing else was asked for"
    assert "The source 'fails' takes no part: OSError: no such table" in caplog.text


def test_sources_come_in_one_order_or_in_the_option_s(fails: Fails) -> None:
    assert sources.chosen()[:4] == ("triton", "library", "cpp", "cublaslt") and sources.chosen()[-1] == "fails"
    with options.override(sources="fails, cpp, library"):
        assert sources.chosen() == ("fails", "cpp", "library") and sources.brought() == ("fails",)
        places = [place_of(origin, "mm") for origin in ("fails fast", "fails", "cpp", "split_k", "triton")]
    assert places == [0, 0, 1, 2, 3]
    with options.override(sources="library"):
        assert sources.brought() == ()


def test_what_is_no_source_or_has_a_taken_name_is_refused(fails: Fails) -> None:
    class Library(Source):
        name = "library"

    class Spaced(Source):
        name = "my kernels"

    with pytest.raises(SourceError, match="takes a Source .*; it was given 'mine'"):
        polytile.register_source("mine")  # type: ignore[arg-type]
    with pytest.raises(SourceError, match="there is a source 'library' already, _Library; choose another name"):
        polytile.register_source(Library())
    with pytest.raises(SourceError, match="named 'my kernels'; choose a name of letters"):
        polytile.register_source(Spaced())
    with pytest.raises(SourceError, match="there is no source 'mine'; there are triton, library, cpp"):
        sources.unregister("mine")
    polytile.register_source(Fails())  # of the same class: it takes the place
    assert [source.name for source in sources.registered()].count("fails") == 1


def test_origins_of_own_candidates_are_known_before_own_sources_are_imported() -> None:
    """Commands that only read records do not import them."""
    text = """
import sys
from polytile.candidates import sources

print(*(sources.source_of(origin) for origin in ("split_k", "unfused", "cpp", "halves")))
assert "polytile.candidates.own_sources" not in sys.modules
"""
    told = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["library", "library", "cpp", "halves"]
