"""A model trained once on synthetic measurements."""

from __future__ import annotations

import pytest

from polytile.learn import train
from polytile.learn.examples import Example, examples
from polytile.learn.model import Trained
from tests.learn.synthetic import records


@pytest.fixture(scope="session")
def learned_from() -> tuple[Example, ...]:
    return examples(records(240)).examples


@pytest.fixture(scope="session")
def trained(learned_from: tuple[Example, ...]) -> Trained:
    pytest.importorskip("sklearn")
    with pytest.MonkeyPatch.context() as patched:
        small_grid(patched)
        return train.train(learned_from)


def small_grid(patched: pytest.MonkeyPatch) -> None:
    """Two settings are enough for a law this simple."""
    patched.setattr(train, "DEPTHS", (4,))
    patched.setattr(train, "LEAVES", (3, 12))
    patched.setattr(train, "CRITERIA", ("squared_error",))
