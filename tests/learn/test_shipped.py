"""The models that come with the package: sound, better than predictions, for processors like those measured alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import setuptools
import torch

import polytile
from polytile import options
from polytile.learn import features, installed, model
from polytile.learn.installed import SHIPPED
from polytile.learn.model import Trained
from polytile.learn.offer import Offer
from polytile.problem import Config, Problem
from polytile.runtime import device

FILES = sorted(SHIPPED.glob("*.json"))
CACHES = '{"L1d": 49152, "L2": 1048576, "L3": 33554432}'
MACHINE = {"kind": "cpu", "isa": "avx512", "cores": "2", "threads": "2", "caches": CACHES}


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def shipped(request: pytest.FixtureRequest) -> Trained:
    return installed.checked(request.param)


def middle(trained: Trained, name: str) -> float:
    """Of a feature's range."""
    low, high = trained.ranges[name]
    return (low + high) / 2


def offers(trained: Trained) -> list[Offer]:
    """Two candidates of a problem in the midst of what the model was trained on."""
    work = {name: middle(trained, name) for name in trained.ranges if name.startswith("work.")}
    seconds = 2 ** middle(trained, "best") / 1e6
    return [Offer(name, Config(), "cpp", seconds * factor, lambda: work) for name, factor in (("one", 1.0), ("other", 1.5))]


def asked(trained: Trained, monkeypatch: pytest.MonkeyPatch, facts: Mapping[str, str]) -> bool:
    """Whether it says something on a machine with these facts."""
    monkeypatch.setattr(device, "described", lambda name: tuple({**MACHINE, **facts}.items()))
    model._judged.cache_clear()
    return trained.expect(Problem(trained.family, "k", (), ("float32",)), offers(trained)) is not None


def test_there_are_some_and_each_was_better_than_the_prediction(shipped: Trained) -> None:
    assert len(FILES) == 2 and not shipped.why_unused()
    assert shipped.forest.table_bytes <= 64 << 10 and shipped.architecture == "cpu avx512"
    tested = {report.set: report for report in shipped.reports}["test"]
    assert tested.total > 200 and tested.p95 < tested.prior_p95 and tested.top3 < tested.prior_top3
    sure = tested.correct + tested.wrong
    assert tested.answered <= 1.015 and tested.far <= 0.01 * sure and tested.max_wrong_speedup <= 1.25


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({}, True), ({"threads": "1"}, True), ({"model": "another", "cores": "3"}, True), ({"isa": "avx2"}, False),
        ({"kind": "cuda", "capability": "90"}, False), ({"threads": "4"}, False), ({"cores": "16"}, False),
        ({"caches": '{"L1d": 49152, "L2": 2097152, "L3": 33554432}'}, False), ({"caches": "{}"}, False),
    ],
)  # fmt: skip
def test_it_speaks_on_processors_like_its_own_alone(
    shipped: Trained, monkeypatch: pytest.MonkeyPatch, facts: dict[str, str], says: bool
) -> None:
    assert asked(shipped, monkeypatch, facts) == says


def test_the_wheel_has_them() -> None:
    source = Path(__file__).parents[2]
    packages = setuptools.find_namespace_packages(str(source / "src"))  # as packages.find of pyproject.toml does
    assert '"*.json"' in (source / "pyproject.toml").read_text() and "polytile.learn.models" in packages


def test_the_recipe_names_what_they_were_made_of(shipped: Trained) -> None:
    page = (Path(__file__).parents[2] / "docs" / "learning.md").read_text()
    assert shipped.digest in page and str(shipped.trained_on["problems"]) in page


def test_explain_names_the_model_that_decided(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    here = features.architecture(dict(device.described(device.fingerprint())))
    loops = installed.checked(SHIPPED / "loop-cpu-avx512.json")
    certain = dataclasses.replace(loops, threshold=math.inf, ranges={}, architecture=here)
    monkeypatch.setattr(installed, "models", lambda: (certain,))
    x = torch.randn(64, 512)
    with options.override(learned=True):
        function = polytile.compile(lambda x: torch.softmax(x * 2, -1))  # two operators: of one, eager's call is timed
        before = polytile.counters["candidates_benchmarked"]
        function(x)
        assert polytile.counters["candidates_benchmarked"] == before
        assert f"predicted by {certain.name}" in str(polytile.explain(function, x))
