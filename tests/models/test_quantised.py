"""Models whose linear layers have weights in 8 and 4 bits: one program for all lengths, as near to float64 as eager is, and no
product left to a library call."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import polytile
from benchmarks.quantised_model import LAYERS, TORCHAO, Llama, Quantised, quantise, quantise_by_torchao
from tests.behaviour.helpers import compiled, distance, graphs

LENGTHS = (5, 64, 33)
BRIEFLY = {"tune": "off", "isolation": "never"}
PRODUCTS = ("mm", "_int_mm", "_scaled_mm", "_weight_int8pack_mm", "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu")


def llama(layers: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return Llama(layers=layers).bfloat16().eval()


def in_full(model: nn.Module) -> nn.Module:
    """The model in float64, with the weights that quantised layers stand for."""
    for name, child in model.named_children():
        if isinstance(child, Quantised):
            linear = nn.Linear(1, 1, bias=False)
            linear.weight = nn.Parameter(child.full())
            setattr(model, name, linear)
        else:
            in_full(child)
    return model.double()


def check(model: nn.Module, exact: Callable[[Tensor], Tensor] | None, nearness: float) -> None:
    """One program at every length: as near to `exact` as eager is, or within `nearness` of eager in the mean; all products in it
    are polytile's kernels or candidates of its own choice."""
    before, call = graphs(), compiled(model, **BRIEFLY)
    with torch.no_grad():
        for length in LENGTHS:
            tokens = torch.randint(0, 96, (2, length))
            got, eager = call(tokens), model(tokens)
            assert (got.dtype, got.shape) == (eager.dtype, eager.shape)
            off = (got - eager).double().abs().mean() / eager.double().abs().mean()
            assert off <= nearness, f"{length}: {off:.2g} off eager"
            if exact is not None:
                right = exact(tokens)
                assert distance(got, right) <= 2 * distance(eager, right) + 0.02, length
    assert (graphs()[0] - before[0], graphs()[1] - before[1]) == (1, 1)
    explained = polytile.explain(call, tokens)
    products = [row for row in explained.operators if row.operator.split(".")[1] in PRODUCTS]
    assert products and all(row.how == "template" for row in products), products


SLOW = pytest.mark.slow
UNSLOWED = ("int4 groups",)
"""What runs among the usual tests, with one layer: the others are variants of it."""


def marked(name: str) -> object:
    return name if name in UNSLOWED else pytest.param(name, marks=SLOW)


KINDS = [marked(name) for name in LAYERS if name != "float8 dynamic"]
"""All that a CPU has products for."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantised_llama_is_one_program_for_all_lengths(kind: str) -> None:
    model = quantise(llama(1 if kind in UNSLOWED else 2), LAYERS[kind])
    rounds = kind == "int8 dynamic"
    check(model, None if rounds else in_full(copy.deepcopy(model)), 0.02 if rounds else 0.01)


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs torchao")
@pytest.mark.parametrize("name", [marked(name) for name in TORCHAO["cpu"]])
def test_a_llama_that_torchao_has_quantised_is_one_program_for_all_lengths(name: str) -> None:
    check(quantise_by_torchao(llama(), TORCHAO["cpu"][name]), None, 0.02)
