"""Whole models against eager: results, gradients and buffers, one graph for all sizes from 2 on.

Two sizes each are among the usual tests; `make models` runs all sizes, with the models of transformers.
"""

from __future__ import annotations

import pytest

from tests.behaviour.helpers import graphs
from tests.models.hub import HUB
from tests.models.trio import Trio
from tests.models.zoo import MODELS, Model

SIZES = (6, 13, 2, 3, 8, 17, 24, 33)


def one_graph(model: Model, sizes: tuple[int, ...], training: bool) -> None:
    trio = Trio(model.make, training, tune="off")
    for n in sizes:
        trio.step(*model.inputs(n))
    assert graphs() == (2 if training else 1, 1)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_training_is_eagers(name: str) -> None:
    one_graph(MODELS[name], SIZES[:2], True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_eight_sizes_are_eagers(name: str, training: bool) -> None:
    one_graph(MODELS[name], SIZES, training)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", HUB)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_eight_sizes_of_models_of_transformers_are_eagers(name: str, training: bool) -> None:
    pytest.importorskip("transformers", reason="the models of transformers come with the extra 'bench'")
    one_graph(HUB[name], SIZES, training)
