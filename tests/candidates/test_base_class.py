"""What candidates have in common: the defaults of the base class, and those that compiled ones bring."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from polytile.candidates import cpp
from polytile.candidates.candidate import Candidate
from polytile.candidates.cpp_matmul import MatmulCandidate
from polytile.candidates.entries import NativeEntry, PythonEntry
from polytile.errors import CompileFailed
from polytile.problem import Config
from polytile.schedule.facts import Facts

SIZES = {"M": 3}


class Least(Candidate):
    """No more than a candidate has to have."""

    name, origin, config = "least", "user", Config()
    source_hash = "h"

    def cost(self, sizes: Any) -> float:
        return 1e-6

    def entry(self) -> PythonEntry:
        return PythonEntry(print)


def test_a_cost_and_an_entry_are_required_and_the_rest_has_defaults() -> None:
    class WithoutCost(Candidate):
        source_hash = "h"

        def entry(self) -> PythonEntry:
            return PythonEntry(print)

    with pytest.raises(TypeError, match="cost"):
        WithoutCost()  # type: ignore[abstract]
    least = Least()
    least.prepare()
    assert least.valid(SIZES) and least.ready() and not least.failed() and least.handle() is None
    assert least.specialise(Facts()) is least.pinned_to(SIZES) is least
    assert least.steady and not (least.hard_limits or least.interpreted or least.in_main_script)
    assert least.describe(SIZES) == {} and least.traits == least.operators == () and not least.source_path
    assert least.resources is None and least.compile_seconds is None


def test_an_entry_reports_the_check_that_failed_where_it_waits() -> None:
    with pytest.raises(IndexError, match="check 3"):
        NativeEntry(0, wait=lambda: 3).synchronise()
    NativeEntry(0, wait=lambda: 0).synchronise()
    NativeEntry(0).synchronise()
    PythonEntry(print).synchronise()


def test_a_product_in_two_units_is_ready_when_both_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    units: list[Future[Any]] = []

    def compile_cpp(name: str, source: Any, key: str) -> Future[Any]:
        units.append(Future())
        return units[-1]

    monkeypatch.setattr(cpp.compiler, "compile_cpp", compile_cpp)

    def candidate() -> MatmulCandidate:
        units.clear()
        config = Config.of(form="tile_packed", mr=6, nv=4, threads=1)
        sources = (lambda: "core", lambda: "epilogue")
        made = MatmulCandidate("tile", config, "mm", cpp.Prediction(lambda sizes: True, lambda sizes: 1e-6), "recipe", sources, 0)
        assert not made.ready() and not made.failed() and made.compile_seconds is None
        made.prepare()
        return made

    made = candidate()
    core, epilogue = units
    core.set_result(SimpleNamespace(seconds=0.5))
    assert not made.ready() and made.compile_seconds is None
    epilogue.set_result(SimpleNamespace(seconds=0.25))
    assert made.ready() and not made.failed() and made.compile_seconds == 0.75
    made = candidate()
    units[1].set_exception(CompileFailed("no such type"))
    assert made.failed() and not made.ready()
