"""Random expressions on tensors of any type, shape and layout, empty ones among them, are eager's."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.behaviour.expressions import Example, examples
from tests.conformance.judge import judge

CHECKS = (hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much)


def run(call: Any, example: Example, widen: bool = False) -> tuple[Any, list[Any]]:
    """Results and gradients by the floating-point inputs of 32 and 64 bits, for cotangents of one."""
    inputs = [t.double() if widen and t.is_floating_point() else t for t in example.tensors()]
    wanted = [
        t for t, (dtype, _, _) in zip(inputs, example.inputs, strict=True) if dtype in (torch.float32, torch.float64)
    ]
    for tensor in wanted:
        tensor.requires_grad_()
    results = call(*inputs)
    ends = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    gradients = torch.autograd.grad([end.sum() for end in ends], wanted, allow_unused=True) if ends and wanted else []
    return [r.detach() for r in results], list(gradients)


def is_eagers(example: Example, dynamic: bool) -> None:
    try:
        results, gradients = run(example.function, example)
    except (RuntimeError, IndexError, TypeError):  # operators that do not take these types, shapes that do not fit
        hypothesis.reject()
    torch._dynamo.reset()
    options = {"tune": "off"}
    call = torch.compile(example.function, backend="polytile", dynamic=dynamic, fullgraph=True, options=options)
    mine, slopes = run(call, example)
    judge(mine, results, lambda: run(example.in_float64, example, True)[0], "result")
    judge(slopes, gradients, lambda: run(example.in_float64, example, True)[1], "gradient", strides=False)


@settings(max_examples=settings().max_examples * 2 // 3, suppress_health_check=CHECKS)
@given(examples(), st.booleans())
def test_a_random_expression_is_eagers(example: Example, dynamic: bool) -> None:
    is_eagers(example, dynamic)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=500, suppress_health_check=CHECKS)
@given(examples(), st.booleans())
def test_many_random_expressions_are_eagers(example: Example, dynamic: bool) -> None:
    is_eagers(example, dynamic)
