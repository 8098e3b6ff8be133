"""Decisions are judged by what they distinguish: whether to pad, by the best of the padded against the best of the others."""

from __future__ import annotations

from polytile.learn.decisions import DECISIONS
from polytile.learn.examples import Example
from polytile.learn.model import Judgement
from polytile.learn.offer import Offer
from polytile.learn.score import case, tried
from polytile.problem import Config, Problem

BY_NAME = {decision.name: decision for decision in DECISIONS}


def example(*dtypes: str) -> Example:
    offers = (
        Offer("aten", Config(), "library", 1e-6), Offer("aten padded", Config(), "padding", 2e-6),
        Offer("tile", Config(), "triton", 3e-6),
    )  # fmt: skip
    return Example(Problem("mm", "k", (("M", 8),), dtypes), {}, offers, (4e-6, 2e-6, 3e-6))


def judged(first: str) -> Judgement:
    names = [first, *(name for name in ("aten", "aten padded", "tile") if name != first)]
    return Judgement(tuple(names), dict.fromkeys(names, 1e-6), 0.0, True)


def test_whether_to_pad_is_wrong_only_if_the_other_answer_is_better() -> None:
    asked = example("bfloat16", "bfloat16")
    (pad,) = BY_NAME["pad"].examples_of([asked])
    assert case(pad, judged("aten")).regret == case(pad, judged("tile")).regret == 1.5
    assert case(pad, judged("aten padded")).regret == 1.0
    assert case(asked, judged("aten")).regret == 2.0
    report = tried("pad", [case(pad, judged(name)) for name in ("aten", "aten padded")])
    assert (report.correct, report.wrong, report.unsure, report.max_wrong_speedup, report.far) == (1, 1, 0, 1.5, 1)


def test_each_decision_is_posed_by_its_own_examples() -> None:
    plain, mixed = example("bfloat16", "bfloat16"), example("bfloat16", "int8")
    assert [name for name in BY_NAME if BY_NAME[name].examples_of([plain])] == ["kernel", "pad", "configs"]
    assert BY_NAME["mixed"].examples_of([plain, mixed]) and not BY_NAME["attention"].examples_of([plain, mixed])


def test_without_a_judgement_the_predictions_ranking_stands_and_nobody_is_sure() -> None:
    found = case(example("bfloat16"), None)
    assert found.ranking == found.prior == (2.0, 1.0, 1.5) and not found.sure
