"""Parts of programs as JSON and back."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy.functions import CeilToInt, FloorDiv, Max, Min, Mod, ModularIndexing, TruncToInt

from polytile.ir import expr, sizes
from polytile.ir.buffer import View
from polytile.ir.library_call import LibraryCall, Made, Ref
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.serialise import MALFORMED, Reader, Unstorable, Writer

N, K = sizes.axis("n"), sympy.Symbol("k", integer=True, positive=True)


def again(value: Any) -> Any:
    return Reader(json.loads(json.dumps(Writer().document(value)))).value()


@pytest.mark.parametrize(
    "size",
    [
        N, K, 3 * N**2 + K - 7, FloorDiv(N + 1, 2), Mod(N, 16), ModularIndexing(N, 4, K), Max(N, K, 3), Min(N, 2 * K),
        sympy.Rational(2, 3), sympy.Float(0.1), sympy.oo, -sympy.oo, sympy.true, sympy.Eq(N, K), sympy.And(N < K, K > 3),
        TruncToInt(sympy.Float(1.7) * N), CeilToInt(sympy.Symbol("f")), sympy.Symbol("f"), sympy.Integer(-2), N / K,
    ],
    ids=str,
)  # fmt: skip
def test_a_size_is_what_it_was(size: sympy.Basic) -> None:
    found = again(size)
    assert found == size and type(found) is type(size)


def test_symbols_keep_what_is_assumed_of_them() -> None:
    same_name = sympy.Symbol("k", integer=True)
    assert again((K, same_name)) == (K, same_name) and K != same_name


def test_a_loop_is_what_it_was_and_what_it_shares_is_written_once() -> None:
    loaded = expr.load(torch.float32, "a0", 2 * N + K)
    doubled = expr.op("mul", torch.float32, loaded, expr.const(-0.0, torch.float32))
    value = expr.op("add", torch.float32, doubled, doubled)
    call = LibraryCall(
        torch.ops.aten.add.Tensor, (Ref(View("a0", torch.float32, (K,), (sizes.ONE,))), Ref(Made(0)), 1.5), (("alpha", [2]),), ()
    )
    loop = Loop("kernel", (Axis(N, K),), (), (Store("a1", N, value, indirect=(loaded,)),), ("mul",), (call,))
    found = again(loop)
    assert found == loop and found.library == loop.library
    assert found.stores[0].value is value, "expression nodes are interned"
    shared = Writer().document(loop)["shared"]
    assert len(shared) == len({json.dumps(each) for each in shared})


@pytest.mark.parametrize(
    "value",
    [
        (1, True, 2.5, -0.0, math.inf, "a", None, [1, (2,)], {"a": (1,)}, frozenset({3, 1})),
        (torch.bfloat16, torch.device("cuda:1"), torch.channels_last, torch.strided, torch.ops.aten.sum.dim_IntList),
    ],
)
def test_a_plain_value_is_what_it_was(value: Any) -> None:
    assert repr(again(value)) == repr(value)


class Counter:
    """Something with a state, which a document does not keep."""

    def __init__(self, step: int, names: tuple[str, ...]) -> None:
        self.made_from = step, names
        self.count = 0


def test_an_object_with_a_state_is_made_anew_and_stays_one_object() -> None:
    counter = Counter(3, ("a", "b"))
    counter.count = 7
    document = json.loads(json.dumps(Writer([Counter]).document([counter, {"again": counter}])))
    one, again = Reader(document, [Counter]).value()
    assert one is again["again"]
    assert (one.made_from, one.count) == (counter.made_from, 0)


@pytest.mark.parametrize("value", [torch.ones(2), len, object(), sympy.Dummy("d"), sympy.Function("f")(N)])
def test_what_has_no_form_is_refused(value: Any) -> None:
    with pytest.raises(Unstorable, match="no form on disk"):
        Writer().document((1, value))


@pytest.mark.parametrize(
    "document",
    [
        {}, {"shared": [["sympy", "lambdify"]], "value": 1}, {"shared": [["@", 4]], "value": 1},
        {"shared": [["sympy", "Add", 7]], "value": 1}, {"shared": [["Load", 1]], "value": 1},
        {"shared": [], "value": ["Loop"]}, {"shared": [], "value": ["operator", "aten.no_such.default"]},
        {"shared": [], "value": ["torch", "load"]}, {"shared": [], "value": ["no such kind"]},
    ],
    ids=str,
)  # fmt: skip
def test_a_malformed_document_is_an_error_of_a_known_kind(document: Any) -> None:
    with pytest.raises(MALFORMED):
        Reader(document).value()
