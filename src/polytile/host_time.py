"""What calling a kernel costs the host, where that is more than a launch from C.

A GPU's kernel is timed without the host, which may be far ahead of the device. In a program of short kernels it is not: there a
call takes as long as the host needs for it. Such a call through Python also ends a CUDA graph. So candidates that Python calls
are compared by more than their kernels' time where these are short.
"""

from __future__ import annotations

PYTHON_CALL = 30e-6
"""Seconds that a call of several operators of torch, or of several kernels, through Python counts for. It is far less than was
measured: on an H200's host a call of the memory-efficient kernels took 272 µs, and a launch from C 9
(benchmarks/results/gpu_host_time.json: four layers of a Llama)."""

THROUGH_PYTHON = {
    (family, origin) for family in ("attention", "attention_backward") for origin in ("library", "sdpa", "unfused")
}
"""Families of problems and origins of candidates that are called through Python on a GPU, and compete with launches from C."""


def host_seconds(family: str, origin: str, device: str) -> float:
    """Seconds that a call of a candidate of this origin keeps the host busy beyond a launch from C, on a type of device. On a CPU
    they are part of what is timed: 0."""
    return PYTHON_CALL if device == "cuda" and (family, origin) in THROUGH_PYTHON else 0.0


def weighed(seconds: float, host: float) -> float:
    """The seconds by which to compare kernels that take the device `seconds` a call, and the host `host`: half of what the host
    takes longer counts, as nobody knows whether it is ahead. Of two with the same `host`, the shorter stays the shorter."""
    return seconds + max(0.0, host - seconds) / 2
