"""The decisions that a ranking of candidates takes, each judged by what it distinguishes and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from polytile.learn.examples import Example
from polytile.learn.offer import Offer

TEN = 10
"""Configs of a product that are tried."""


@dataclass(frozen=True)
class Decision:
    """One of them: which examples pose it, and what an offer answers."""

    name: str
    doc: str
    asked: Callable[[Example], bool]
    answer: Callable[[Offer], Hashable] = lambda offer: offer.name

    def examples_of(self, chosen: Sequence[Example]) -> list[Example]:
        """Examples of this decision: an offer for each answer, the fastest of those that give it. What the answer costs is then
        what the best of them costs."""
        return [self._posed(example) for example in chosen if self.asked(example)]

    def _posed(self, example: Example) -> Example:
        best: dict[Hashable, int] = {}
        for place, offer in enumerate(example.offers):
            answer = self.answer(offer)
            if answer not in best or example.seconds[place] < example.seconds[best[answer]]:
                best[answer] = place
        seconds = tuple(example.seconds[best[self.answer(offer)]] for offer in example.offers)
        return replace(example, seconds=seconds)


def _is_padded(offer: Offer) -> bool:
    return offer.origin == "padding"


def _mixed(example: Example) -> bool:
    return example.problem.family == "mm" and len(set(example.problem.dtypes[:2])) > 1


DECISIONS = (
    Decision("kernel", "which candidate runs", lambda example: True),
    Decision(
        "pad",
        "whether a product's operands are padded",
        lambda example: len(set(map(_is_padded, example.offers))) > 1,
        _is_padded,
    ),
    Decision("mixed", "which kernel runs a product of two element types", _mixed),
    Decision("configs", f"which {TEN} candidates of a product are tried", lambda example: example.problem.family == "mm"),
    Decision("attention", "which config runs an attention", lambda example: example.problem.family == "attention"),
)
