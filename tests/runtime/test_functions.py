"""Python functions in place of operators: the same overload, or none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polytile.runtime.functions import calls_overload, quickest

aten, X = torch.ops.aten, torch.empty(1, 1)

CALLS: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {
    aten.grid_sampler_2d.default: ((X, X, 0, 0, False), {}),
    aten.convolution.default: ((X, X, None, [1], [1], [1], False, [0], 1), {}),
    aten.exponential_.default: ((X,), {}),
    aten.normal_.default: ((X, 0.0, 1.0), {"generator": None}),
    getattr(aten.random_, "from"): ((X, 0, 5), {}),
    aten.sort.stable: ((X,), {"stable": True, "dim": 1}),
    aten.linalg_inv_ex.default: ((X,), {}),
    aten.add.Tensor: ((X, 1), {}),
}


@pytest.mark.parametrize("target", CALLS, ids=str)
def test_a_function_is_found_that_calls_the_very_overload(target: torch._ops.OpOverload) -> None:
    args, named = CALLS[target]
    function = quickest(target, args, named)
    assert function is not target._op and calls_overload(function, target, args, named)


def test_an_operator_that_the_function_would_choose_another_overload_for_is_called_itself() -> None:
    assert quickest(aten.add.Scalar, (X, 1), {}) is aten.add.Scalar._op
    assert quickest(aten.index_put_.default, (X, [None, X], X), {}) is aten.index_put_.default._op


def test_looking_for_a_function_computes_nothing() -> None:
    x = torch.ones(3)
    quickest(aten.zero_.default, (x,), {})
    assert x.tolist() == [1, 1, 1]


def test_an_overload_that_other_arguments_mean_is_not_taken() -> None:
    assert calls_overload(torch.pow, aten.pow.Tensor_Scalar, (X, 2.0), {})
    assert not calls_overload(torch.pow, aten.pow.Tensor_Tensor, (X, 2.0), {})
    assert not calls_overload(torch.add, aten.erf.out, (X,), {"out": X}), "it takes another argument"


def test_a_function_is_found_while_candidates_are_tuned() -> None:
    out = torch.zeros(3)
    with torch._C._DisableTorchDispatch():
        assert calls_overload(torch.erf, aten.erf.out, (torch.ones(3),), {"out": out})
    assert not out.any(), "nothing is computed there either"
