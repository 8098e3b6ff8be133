"""Worker process code (runtime/cuda/worker.py): compiles one launch, given as plain data, to a cubin.

The server imports this module, and Triton with it, once before it forks workers. PyTorch is not imported: that would
take longer than compiling a kernel.
"""

from __future__ import annotations

import base64
from typing import Any

import triton.backends.compiler
import triton.compiler
import triton.language  # noqa: F401  (what every job imports)

from polytile.codegen.triton.compile import to_cubin
from polytile.codegen.triton.kernel import Argument, Kind, Launch


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Compiles the launch described by `candidates/triton.py`; the binary is returned in base 64."""
    arguments = tuple(Argument(Kind(kind), name, type_, index) for kind, name, type_, index in job["arguments"])
    launch = Launch(
        job["source"],
        arguments,
        tuple((name, value) for name, value in job["constants"]),
        tuple((name, by) for name, by in job["divisible"]),
        job["num_warps"],
        job["num_stages"],
        (),  # type: ignore[arg-type]  # the grid does not affect compilation
        own=tuple((name, value) for name, value in job.get("own", ())),
    )
    cubin = to_cubin(launch, job["arch"], job["symbol"])
    return {
        "binary": base64.b64encode(cubin.binary).decode(),
        "symbol": cubin.name,
        "num_warps": cubin.num_warps,
        "shared": cubin.shared,
        "registers": cubin.registers,
        "spills": cubin.spills,
        "global_scratch": cubin.global_scratch,
        "profile_scratch": cubin.profile_scratch,
        "descriptors": cubin.descriptors,
    }
