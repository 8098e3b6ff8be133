"""Training: what is learned, that it is the same each time, and what is said where there is too little."""

from __future__ import annotations

import builtins
import dataclasses
import random
from typing import Any

import pytest

from polytile.learn import model as models
from polytile.learn import train
from polytile.learn.examples import TEST, Example, examples
from polytile.learn.model import Trained, save
from polytile.learn.score import Case, cases, tried
from polytile.store.records import DISTURBED
from tests.learn.conftest import small_grid
from tests.learn.synthetic import records


def test_a_model_learns_what_predictions_miss(trained: Trained, learned_from: tuple[Example, ...]) -> None:
    held = [example for example in learned_from if example.fold == TEST]
    found = tried("test", cases(trained, held))
    assert found == trained.reports[-1] and found.total == len(held) >= 10
    assert found.prior > 1.2 and found.regret < 1.02 and found.top3 == 1.0
    assert found.correct + found.wrong + found.unsure == found.total and found.correct > 0 and found.far == 0
    assert not trained.why_unused()


def test_the_same_measurements_give_the_same_bytes(trained: Trained, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small_grid(monkeypatch)
    shuffled = records(240)
    random.Random(1).shuffle(shuffled)
    again = train.train(examples(shuffled).examples)
    save(again, tmp_path / "again.json")
    save(trained, tmp_path / "first.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "first.json").read_bytes()
    assert models.load(tmp_path / "first.json").digest == trained.digest


def test_what_nothing_can_be_learned_of_is_no_better_and_not_to_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    small_grid(monkeypatch)
    useless = train.train(examples(records(240, penalty=0.0)).examples)
    assert "its first choice takes 1.000 times the fastest's time, the prediction's 1.000" in useless.why_unused()


def test_too_few_problems_are_refused() -> None:
    with pytest.raises(train.TrainingError, match="there are 12 problems to learn from.*polytile learn collect"):
        train.train(examples(records(12)).examples)


def test_without_scikit_learn_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError("No module named 'sklearn'")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(train.TrainingError, match=r"pip install 'polytile\[learn\]'"):
        train.train(examples(records(60)).examples)


def fresh(*found: tuple[float, float]) -> list[Case]:
    """Cases of (risk, regret)."""
    example = examples(records(1)).examples[0]
    return [Case(example, (regret,), (regret,), risk, False) for risk, regret in found]


def test_being_sure_wants_many_answers_of_which_few_are_far_off() -> None:
    right = [(0.001 * k, 1.0) for k in range(200)]
    assert train.threshold(fresh(*right[:113])) == -1.0, "nobody knows of so few"
    assert train.threshold(fresh(*right[:120])) == 0.119
    assert train.threshold(fresh(*right, (0.3, 1.5))) == 0.3, "one in 201 is less than one in a hundred"
    assert train.threshold(fresh(*right, (0.3, 1.5), (0.4, 1.5), (0.5, 1.5))) == 0.3
    assert train.threshold(fresh(*right, *[(0.3, 1.09)] * 200)) == 0.199, "none is far off, and together they cost too much"


def test_answers_of_one_risk_are_given_together_or_not_at_all() -> None:
    assert train.threshold(fresh(*[(0.0, 1.0)] * 150, *[(0.0, 1.5)] * 10)) == -1.0


def test_the_bound_on_far_answers_is_that_of_clopper_and_pearson() -> None:
    assert train.largest_share(0, 114) == pytest.approx(1 - 0.1 ** (1 / 114))
    assert train.largest_share(3, 100) == pytest.approx(0.0656, abs=1e-4) and train.largest_share(5, 5) == 1.0


def test_in_validation_a_model_has_not_seen_the_kernels_it_is_asked_about() -> None:
    def named(example: Example, number: int) -> Example:
        return dataclasses.replace(example, problem=dataclasses.replace(example.problem, kernel=f"kernel {number % 13}"))

    found = examples(records(60)).examples
    few, many = train._dealt(found), train._dealt([named(example, number) for number, example in enumerate(found)])
    assert len(few) == 5 and all(len({example.fold for example in part}) == 1 for part in few)
    kernels = [{example.problem.kernel for example in part} for part in many]
    assert len(many) == 4 and sum(map(len, kernels)) == len(set().union(*kernels)) == 13 and sum(map(len, many)) == 60


def test_sizes_alone_say_which_part_a_problem_is_in() -> None:
    here, there = (examples(records(20, device=device)).examples for device in ("cuda-a", "cuda-b"))
    parts = {example.problem.sizes: example.fold for example in here}
    assert parts == {example.problem.sizes: example.fold for example in there} and len(set(parts.values())) > 2


def test_what_could_not_run_and_what_has_no_terms_is_left_out() -> None:
    whole = records(3)
    bare = [dataclasses.replace(r, measurement=dataclasses.replace(r.measurement, state=())) for r in whole[:4]]
    found = examples([*bare, whole[4], *whole[8:]])
    assert (len(found.examples), found.alone, found.without_terms) == (1, 1, 1)


def test_times_that_were_taken_under_load_are_left_out() -> None:
    whole = records(2)
    state = (*whole[0].measurement.state, (DISTURBED, 0.5))
    busy = [dataclasses.replace(r, measurement=dataclasses.replace(r.measurement, state=state)) for r in whole[:3]]
    found = examples([*busy, *whole[3:]])
    assert len(found.examples) == found.alone == 1 and len(found.examples[0].offers) == 4
