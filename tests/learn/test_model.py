"""What a model answers, where it is silent, and which files are refused."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from polytile import options
from polytile.errors import OptionError
from polytile.learn import emit, features, forest, installed, model
from polytile.learn.examples import Example
from polytile.learn.forest import Forest
from polytile.learn.model import ModelError, Trained, load, save
from polytile.learn.offer import Offer
from polytile.problem import Config
from polytile.runtime import device
from tests.learn.synthetic import MACHINE


@pytest.fixture
def example(learned_from: tuple[Example, ...]) -> Example:
    return learned_from[7]


def changed(example: Example, **terms: float) -> list[Offer]:
    """The offers with other terms."""
    return [dataclasses.replace(offer, ask=lambda offer=offer: {**offer.ask(), **terms}) for offer in example.offers]


def test_c_and_python_read_the_same_from_a_table(trained: Trained, example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [features.values(row, trained.names) for row in example.ranked[1]]
    forest.prepare().result()
    assert forest._compiled() is not None
    in_c = trained.forest.says(rows)
    monkeypatch.setattr(forest, "_compiled", lambda: None)
    assert trained.forest.says(rows) == in_c and trained.forest.says([]) == [[]] * len(in_c)
    assert trained.forest.table_bytes <= 64 << 10


def test_the_python_of_a_model_answers_as_the_model(trained: Trained, learned_from: tuple[Example, ...]) -> None:
    module: dict[str, Any] = {}
    exec(compile(emit.python(trained), "emitted.py", "exec"), module)  # needs nothing but math
    answers = set()
    for example in learned_from[:40]:
        offers, rows = example.ranked
        found = trained.judge_on(example.problem, example.machine, example.offers)
        expected = found.ranking[0] if found is not None and found.sure else None
        given = {offer.name: (offer.predicted, row) for offer, row in zip(offers, rows, strict=True)}
        assert module["choose"](given) == expected
        answers.add(expected)
    assert len(answers) > 1, "it does not always say the same"


@pytest.mark.parametrize(
    ("terms", "why"),
    [({"work.M": 1e6}, "work.M is 1e.06, and it was trained on"), ({"work.itemsize": 4.0}, "work.itemsize is 4"), ({}, "")],
)
def test_outside_of_what_it_was_trained_on_a_model_is_silent(
    trained: Trained, example: Example, terms: dict[str, float], why: str
) -> None:
    found = trained.judge_on(example.problem, example.machine, changed(example, **terms))
    assert (found is None) == bool(why)
    offers = changed(example, **terms)
    said = trained.why_outside(example.problem, offers, features.features(example.problem, example.machine, offers)[0])
    assert (not said) if not why else said.startswith(why.partition("1e.06")[0])


def test_a_kind_of_candidate_or_a_type_that_it_has_not_seen_keeps_it_silent(trained: Trained, example: Example) -> None:
    strange = [*example.offers, Offer("new", example.offers[0].config, "cutlass", example.offers[0].predicted)]
    assert trained.judge_on(example.problem, example.machine, strange) is None
    slow = [*example.offers, Offer("new", example.offers[0].config, "cutlass", 1.0)]
    assert trained.judge_on(example.problem, example.machine, slow) is not None, "what cannot win is no matter"
    other = dataclasses.replace(example.problem, dtypes=("float16",) * 3)
    assert trained.judge_on(other, example.machine, example.offers) is None


def test_a_model_serves_its_architecture_and_devices_like_those_it_knows(
    trained: Trained, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on(**facts: str) -> str | None:
        monkeypatch.setattr(device, "described", lambda name: tuple({**MACHINE, **facts}.items()))
        model._judged.cache_clear()
        found = trained.expect(example.problem, example.offers)
        return None if found is None else next(iter(found))

    assert on() is not None and on(clock="1.7e9") == on()
    assert on(capability="80") is None and on(kind="cpu") is None and on(sms="20") is None


def test_on_a_cpu_predictions_keep_fewer_from_being_ranked() -> None:
    config = Config()
    offers = [Offer(str(factor), config, "cpp", factor * 1e-6) for factor in (1, 3, 9)]
    assert [offer.name for offer in model.competing(offers, on_gpu=True)] == ["1"]
    assert [offer.name for offer in model.competing(offers, on_gpu=False)] == ["1", "3"]


def test_the_expected_loss_grows_with_doubt_and_falls_with_distance() -> None:
    """A normal difference of mean 0 and deviation d loses d / sqrt(2 pi) on average."""
    assert model.expected_loss([[0.0, 0.0]], 0) == pytest.approx(model.NOISE / math.sqrt(2 * math.pi))
    near, far = (model.expected_loss([[0.0, distance]], 0) for distance in (0.05, 0.5))
    doubtful = model.expected_loss([[0.0, 0.3], [0.0, 0.7]], 0)
    assert near > doubtful > far > 0 == model.expected_loss([[0.0]], 0)
    assert model.expected_loss([[0.0, 0.05, 0.05]], 0) == pytest.approx(2 * near)


def test_what_cannot_be_predicted_is_not_ranked(trained: Trained, example: Example) -> None:
    hopeless = Offer("hopeless", example.offers[0].config, "triton", float("inf"))
    found = trained.judge_on(example.problem, example.machine, [*example.offers, hopeless])
    assert found is not None and "hopeless" not in found.ranking
    assert trained.judge_on(example.problem, example.machine, [hopeless]) is None


# Files.


def written(trained: Trained, path: Path, **said: Any) -> Path:
    """The model's file with other values in it."""
    save(trained, path)
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, **said}))
    return path


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"format": "cake"}, "is no model of polytile"),
        ({"version": 99}, r"is of version \(99, 1\), and this polytile reads \(2, 1\); train it again"),
        ({"names": ["one"]}, "is damaged"),
        ({"down": [0]}, "is damaged"),
        ({"number": [float("nan")]}, "is damaged"),
        ({"roots": []}, "is damaged"),
        ({"settings": {}}, "is damaged"),
    ],
)
def test_a_file_that_is_no_sound_model_is_refused(trained: Trained, tmp_path: Path, said: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        load(written(trained, tmp_path / "model.json", **said))


def test_an_older_models_words_are_read_as_the_present_ones(trained: Trained, tmp_path: Path) -> None:
    """A CPU's `plain` is the same schedule as before."""
    said = {"known": ["variant=plain", "variant=sums", "form=tile_kept", "origin=decomposed", "dtype=float32"]}
    for architecture, variants in (("cuda sm90", {"variant=pointwise", "variant=column_reduction"}), ("cpu avx2", set())):
        found = load(written(trained, tmp_path / "model.json", architecture=architecture, **said)).known
        variants = variants or {"variant=plain", "variant=sums"}
        assert found == {*variants, "form=tile_prepacked", "origin=split_k", "dtype=float32"}


def test_what_is_no_json_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("import os")
    with pytest.raises(ModelError, match="it is not JSON"):
        load(tmp_path / "model.json")
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        load(tmp_path / "none.json")


def test_trees_that_go_in_circles_are_none() -> None:
    Forest((0,), (0, -1, -1), (1, 0, 0), (0.5, 1.0, 2.0))
    for down in (0, -1, 2, 70000):
        with pytest.raises(OptionError, match="children stand behind it"):
            Forest((0,), (0, -1, -1), (down, 0, 0), (0.5, 1.0, 2.0))


def test_the_users_model_comes_first_and_one_that_is_not_better_is_reported_and_left_out(
    trained: Trained, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(installed, "SHIPPED", tmp_path)
    installed.usable.cache_clear()
    shipped = dataclasses.replace(trained, threshold=0.5)
    save(shipped, tmp_path / "a.json")
    worse = dataclasses.replace(trained.reports[-1], regret=1.5, prior=1.4)
    save(dataclasses.replace(trained, family="loop", reports=(worse,)), tmp_path / "b.json")
    with options.override(learned=True), caplog.at_level(logging.WARNING, "polytile"):
        assert [found.digest for found in installed.models()] == [shipped.digest]
        assert "b.json is not better than the prediction" in caplog.text and "1.500 times the fastest's time" in caplog.text
        installed.usable.cache_clear()
        save(trained, installed.users() / "mine.json")
        assert [found.digest for found in installed.models()] == [trained.digest]
    with options.override(learned=False):
        assert installed.models() == ()
    installed.usable.cache_clear()
