"""Calls of the library's operators: what is called, on what."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from polytile.candidates.library.loops import _Look, _Step, calls_overload, composed, functions_like
from polytile.ir.program import Made

aten = torch.ops.aten


def look(at: int, tensor: torch.Tensor, offset: int = 0, whole: bool = False) -> _Look:
    return _Look(at, whole, tensor.dtype, tuple(tensor.shape), tensor.stride(), offset)


def test_a_function_of_pythons_own_counts_only_if_it_calls_the_very_overload() -> None:
    x, out = torch.rand(3, 4), torch.empty(3, 4)
    given: tuple[Any, ...] = ([look(0, x)], {"out": look(1, out)}, (x, out))
    assert any(calls_overload(f, aten.erf.out, *given) for f in functions_like(aten.erf.out))
    assert not calls_overload(torch.exp, aten.erf.out, *given)
    assert not calls_overload(torch.add, aten.erf.out, *given), "it takes another argument"
    assert not functions_like(aten.reflection_pad2d_backward.default), "Python has none"


def test_an_overload_that_other_arguments_mean_is_not_taken() -> None:
    x = torch.rand(3, 4)
    assert calls_overload(torch.pow, aten.pow.Tensor_Scalar, [look(0, x), 2.0], {}, (x,))
    assert not calls_overload(torch.pow, aten.pow.Tensor_Tensor, [look(0, x), 2.0], {}, (x,))


def test_looking_for_a_function_computes_nothing() -> None:
    x = torch.rand(3, 4)
    before = x.clone()
    assert calls_overload(torch.erf, aten.erf.out, [look(0, x)], {"out": look(0, x)}, (x,))
    assert torch.equal(x, before), "the result may be written over the operand"


def test_a_function_is_found_while_candidates_are_tuned_on_flat_tensors() -> None:
    x, out = torch.rand(12), torch.zeros(12)
    given = [look(0, x.view(3, 4), whole=True)], {"out": look(1, out.view(3, 4), whole=True)}, (x, out)
    with torch._C._DisableTorchDispatch():
        assert calls_overload(torch.erf, aten.erf.out, *given)
    assert not out.any(), "nothing is computed there either"


@pytest.mark.parametrize("shape", [(3, 4), (12,), (4, 3)], ids=str)
def test_tensors_of_other_shapes_are_looked_at_in_those_of_the_call(shape: tuple[int, ...]) -> None:
    x, out = torch.rand(3, 4), torch.empty(3, 4)
    composed([_Step(0, torch.erf, (look(0, x),), {"out": look(1, out)})])((x.view(shape), out.view(shape)))
    assert torch.equal(out, torch.erf(x))


def test_lists_of_tensors_and_places_behind_the_first_element_are_filled_in() -> None:
    base = torch.arange(12.0)
    rows = [look(0, torch.empty(2, 3), offset=k) for k in (0, 6)]
    joined = composed([_Step(0, torch.cat, (rows, 1), {})])((base,))
    assert torch.equal(joined, base.view(2, 2, 3).permute(1, 0, 2).reshape(2, 6))
    flat = composed([_Step(0, torch.erf, (look(0, torch.empty(3, 4), whole=True),), {})])((base,))
    assert torch.equal(flat, torch.erf(base.view(3, 4)))


def test_results_go_from_call_to_call_and_are_given_up_after_their_last_use() -> None:
    x, kept, alive = torch.rand(3, 4), torch.empty(3), list[bool]()
    first = weakref.WeakSet[torch.Tensor]()

    def doubled(t: torch.Tensor) -> torch.Tensor:
        first.add(made := t * 2)
        return made

    def greatest(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(t.max(1))

    def noting(t: torch.Tensor) -> torch.Tensor:
        alive.append(bool(first))
        return t.exp()

    steps = [
        _Step(0, doubled, (look(0, x),), {}),
        _Step(1, greatest, (Made(0),), {}, ((0, look(1, kept)),)),
        _Step(2, noting, (Made(1, 0),), {}),
    ]
    last = composed(steps)((x, kept))
    torch.testing.assert_close(last, (2 * x).amax(1).exp())
    torch.testing.assert_close(kept, (2 * x).amax(1))
    assert alive == [False]
