"""What a way of choosing costs on examples: the columns of a report, regret before accuracy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polytile.learn.examples import Example
from polytile.learn.model import Judgement, Trained, Tried

NOISE = 1.02
"""An answer that takes no more than so many times as long as the fastest counts as right: the tuner would not tell them apart."""

FAR = 1.1
"""An answer that takes more than that is far off."""


@dataclass(frozen=True)
class Case:
    """An example, the regrets of a model's ranking in its order, the prior's, and whether the model was sure. `risk` is what the
    model expected to lose."""

    example: Example
    ranking: tuple[float, ...]
    prior: tuple[float, ...]
    risk: float
    sure: bool

    @property
    def regret(self) -> float:
        """Of the first choice."""
        return self.ranking[0]


def case(example: Example, found: Judgement | None) -> Case:
    """What a judgement is worth on an example. Without one, the prior's ranking stands and nobody is sure."""
    regrets = {offer.name: example.regret(place) for place, offer in enumerate(example.offers)}
    by_prior = sorted(example.offers, key=lambda offer: offer.predicted)
    prior = tuple(regrets[offer.name] for offer in by_prior)
    if found is None:
        return Case(example, prior, prior, math.inf, False)
    return Case(example, tuple(regrets[name] for name in found.ranking), prior, found.risk, found.sure)


def cases(model: Trained, chosen: Iterable[Example]) -> list[Case]:
    """The model on these examples, whatever device they are from; outside of its range the prior's ranking stands."""
    return [case(each, model.of_rows(each.problem, *each.ranked)) for each in chosen]


def tried(name: str, found: Sequence[Case]) -> Tried:
    """The report of the set `name`. Raises ValueError where there are no cases: nothing was tried."""
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
    """1 where there are none."""
    found = list(ratios)
    return _rounded(statistics.geometric_mean(found)) if found else 1.0


def quantile(ratios: Sequence[float], share: float) -> float:
    """The ratio that so large a share of them does not exceed."""
    ordered = sorted(ratios)
    return _rounded(ordered[max(0, math.ceil(share * len(ordered)) - 1)])


def _rounded(ratio: float) -> float:
    return round(ratio, 4)
