"""The cost of a way of choosing, measured on examples: the columns of a report, regret before accuracy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polytile.learn.examples import Example
from polytile.learn.model import Judgement, Trained, Tried
from polytile.store.summary import reached

NOISE = 1.02
"""An answer within this factor of the fastest counts as correct: the tuner could not tell them apart."""

FAR = 1.1
"""An answer beyond this factor is far off."""


@dataclass(frozen=True)
class Case:
    """An example with the regrets of a model's ranking and of the analytical model's, in order, and whether the model was sure.
    `risk` is the loss that the model expected."""

    example: Example
    ranking: tuple[float, ...]
    prior: tuple[float, ...]
    risk: float
    sure: bool

    @property
    def regret(self) -> float:
        """The regret of the first choice."""
        return self.ranking[0]


def case(example: Example, found: Judgement | None) -> Case:
    """The score of a judgement on an example. Without one, the analytical ranking is used and counts as unsure."""
    regrets = {offer.name: example.regret(place) for place, offer in enumerate(example.offers)}
    by_prior = sorted(example.offers, key=lambda offer: offer.predicted)
    prior = tuple(regrets[offer.name] for offer in by_prior)
    if found is None:
        return Case(example, prior, prior, math.inf, False)
    return Case(example, tuple(regrets[name] for name in found.ranking), prior, found.risk, found.sure)


def cases(model: Trained, chosen: Iterable[Example]) -> list[Case]:
    """The model's scores on these examples, from any device. Outside its range the analytical ranking is used."""
    return [case(each, model.of_rows(each.problem, *each.ranked)) for each in chosen]


def tried(name: str, found: Sequence[Case]) -> Tried:
    """The report on the set `name`. Raises ValueError if there are no cases."""
    if not found:
        raise ValueError(f"there are no examples in the set {name!r}.")
    sure = [each for each in found if each.sure]
    wrong = [each.regret for each in sure if each.regret > NOISE]
    gains = [each.prior[0] / each.regret for each in sure]
    regrets, prior = [each.regret for each in found], [each.prior[0] for each in found]
    three, prior_three = ([min(ranking(each)[:3]) for each in found] for ranking in (_model_ranking, _prior_ranking))
    return Tried(
        set=name,
        total=len(found),
        correct=len(sure) - len(wrong),
        wrong=len(wrong),
        unsure=len(found) - len(sure),
        far=sum(regret > FAR for regret in wrong),
        max_wrong_speedup=_rounded(max(wrong, default=1.0)),
        gman_wrong_speedup=geomean(wrong),
        answered=geomean(each.regret for each in sure),
        regret=geomean(regrets),
        p95=quantile(regrets, 0.95),
        worst=_rounded(max(regrets)),
        top3=geomean(three),
        top3_p95=quantile(three, 0.95),
        top10=geomean(min(each.ranking[:10]) for each in found),
        prior=geomean(prior),
        prior_p95=quantile(prior, 0.95),
        prior_top3=geomean(prior_three),
        speedup=geomean(gain for gain in gains if gain > 1),
        slowdown=geomean(1 / gain for gain in gains if gain < 1),
    )


def _model_ranking(each: Case) -> tuple[float, ...]:
    return each.ranking


def _prior_ranking(each: Case) -> tuple[float, ...]:
    return each.prior


def geomean(ratios: Iterable[float]) -> float:
    """The geometric mean; 1 if there are no ratios."""
    positive = list(ratios)
    return _rounded(statistics.geometric_mean(positive)) if positive else 1.0


def quantile(ratios: Sequence[float], share: float) -> float:
    """The ratio that this share of them does not exceed."""
    return _rounded(reached(ratios, share))


def _rounded(ratio: float) -> float:
    return round(ratio, 4)
