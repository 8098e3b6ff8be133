"""What the code that Dynamo makes calls besides its graph (compiler/helpers.py)."""

from __future__ import annotations

import dis
import math
import types
from typing import Any

import pytest
import torch
from torch import Tensor

from polytile.compiler import helpers
from polytile.compiler.front_door import as_function, door_of, install
from polytile.counters import counters
from polytile.runtime import entry, native

SCALES = {"first": 0.5}


def scaled(x: Tensor) -> Tensor:
    return torch.relu(x) * SCALES["first"]


def behind_a_door(function: types.FunctionType) -> Any:
    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        counters.add("graphs_compiled")
        return graph.forward

    torch._dynamo.reset()
    native.module()
    return install(torch.compile(function, backend=backend, dynamic=True), function, backend, True, "on")


def test_a_number_that_changes_is_the_one_that_a_call_computes_with(monkeypatch: pytest.MonkeyPatch) -> None:
    call, x = behind_a_door(scaled), torch.randn(5)
    for scale in (0.5, 1.5, 0.0, -0.0, 1.5, math.inf, 0.5):
        monkeypatch.setitem(SCALES, "first", scale)
        for _ in range(2):
            found, wanted = call(x), scaled(x)
            assert torch.equal(found.signbit(), wanted.signbit()) and torch.equal(found.nan_to_num(7), wanted.nan_to_num(7))


def test_compiled_code_of_a_function_with_globals_calls_the_helpers() -> None:
    call = behind_a_door(scaled)
    call(torch.randn(5)), call(torch.randn(5))
    door = door_of(call)
    assert door is not None
    code = door.entries()[0].code
    names, found = (
        {step.argval for step in dis.get_instructions(each) if step.opname == "LOAD_GLOBAL"}
        for each in (code, as_function(code, scaled))
    )
    assert {"torch", "SCALES"} <= names and "SCALES" in found and "torch" not in found and set(helpers.NAMES.values()) <= found


def test_a_float_keeps_its_tensor_and_what_equals_it_by_accident_does_not() -> None:
    assert entry.module() is not None
    make = helpers._torch()._as_tensor_fullprec
    assert make(0.1) is make(0.1) and make(0.1).dtype == torch.float64 and make(0.1).item() == 0.1
    assert make(1.0).dtype == torch.float64 and make(1).dtype == torch.int64 and make(True).dtype == torch.bool
    assert not make(0.0).signbit() and make(-0.0).signbit() and make(math.nan).isnan()
    for k in range(2 * helpers.MOST_NUMBERS):
        assert make(float(k + 2)).item() == k + 2


def test_a_tensor_made_in_inference_mode_serves_training_too() -> None:
    helpers._torch.cache_clear()  # other tests may have filled it
    make = helpers._torch()._as_tensor_fullprec
    with torch.inference_mode():
        made = make(0.4375)
    assert make(0.4375) is made and not made.is_inference()


def test_tensors_that_a_mode_makes_are_not_kept() -> None:
    make = helpers._torch()._as_tensor_fullprec
    with torch._subclasses.FakeTensorMode():
        assert isinstance(make(0.375), torch._subclasses.FakeTensor)
    assert type(make(0.375)) is Tensor


def test_code_that_uses_torch_itself_keeps_its_global() -> None:
    def code_of(text: str) -> types.CodeType:
        scope: dict[str, Any] = {}
        exec(f"def function(x):\n    return {text}", scope)
        return scope["function"].__code__  # type: ignore[no-any-return]

    scope = {"torch": torch}
    alone, both = code_of("torch._as_tensor_fullprec(x)"), code_of("torch._as_tensor_fullprec(torch.relu(x))")
    assert helpers.with_helpers(alone, scope).co_names[0] == helpers.NAMES["torch"]
    assert helpers.with_helpers(both, scope) is both
    assert helpers.with_helpers(code_of("x.torch"), scope).co_names == ("torch",)
