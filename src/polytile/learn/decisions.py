"""The decisions for which a ranking of candidates is used. Each is judged only by the distinctions that it makes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from polytile.learn.examples import Example
from polytile.learn.offer import Offer

TEN = 10
"""Number of configs of a product to try."""


@dataclass(frozen=True)
class Decision:
    """A decision: the examples in which it arises, and the answer that an offer stands for."""

    name: str
    doc: str
    asked: Callable[[Example], bool]
    answer: Callable[[Offer], Hashable] = lambda offer: offer.name

    def examples_of(self, chosen: Sequence[Example]) -> list[Example]:
        """The examples of this decision. Each answer costs as much as the fastest offer that gives it."""
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
