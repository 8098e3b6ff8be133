"""One cell: a function at one shape, polytile's dynamic compile beside eager's library calls and the peer's max-autotune."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import polytile
from benchmarks.compilers import copied
from benchmarks.gpu.products import DTYPES, Case, Shape
from benchmarks.gpu.replay import kernel_times

COUNTED = ("compiler_runs", "candidates_benchmarked")
"""Counters of what first calls do."""


def switch(dtype: str) -> None:
    """Whether float32 may be rounded to TF32 is PyTorch's own switch."""
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"


def cell(case: Case, ours: Any, shape: Shape, dtype: str, peer: bool) -> dict[str, Any]:
    """Kernel µs of the contestants, whether polytile's result is right, what the first calls took."""
    torch.manual_seed(0)
    args = case.make(*shape, DTYPES[dtype])
    before = {name: polytile.counters[name] for name in COUNTED}
    got, first = first_call(ours, args)
    counts = {name: polytile.counters[name] - before[name] for name in COUNTED}
    calls, took = {"library": case.run, "polytile": ours}, {}
    if peer:
        torch._dynamo.reset_code(case.run.__code__)
        calls["peer"] = torch.compile(
            copied(case.run, f"theirs{shape[0]}"), dynamic=False, mode="max-autotune-no-cudagraphs"
        )
        took["peer_first_call_s"] = first_call(calls["peer"], args)[1]
    times = kernel_times({name: functools.partial(call, *args) for name, call in calls.items()})
    results, eager = tree_leaves(got), tree_leaves(case.run(*args))
    moved = sum(tensor.nbytes for tensor in (*args, *results))
    wrong = next(filter(None, (_wrong(own, right, shape[2]) for own, right in zip(results, eager, strict=True))), "")
    return {"us": times, "first_call_s": first, **took, **counts, "bytes": moved, "wrong": wrong}


def first_call(call: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, float]:
    """What a first call gives, and how many seconds it takes."""
    began = time.perf_counter()
    got = call(*args)
    torch.cuda.synchronize()
    return got, round(time.perf_counter() - began, 3)


def _wrong(got: torch.Tensor, eager: torch.Tensor, k: int) -> str:
    """What is wrong with the result beside the library's, whose own rounding is that of its type and of TF32."""
    scale = eager.float().abs().mean().clamp_min(1e-30)
    error = float((got.float() - eager.float()).abs().max() / scale)
    least = max(torch.finfo(eager.dtype).eps, 2.0**-10 if torch.backends.cuda.matmul.allow_tf32 else 2.0**-20 * k**0.5)
    return "" if error <= 16 * least else f"off by {error:.2g} of the mean"


__all__ = ["COUNTED", "cell", "first_call", "switch"]
