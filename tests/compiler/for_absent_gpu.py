"""`LD_PRELOAD=absent_gpu.so python -m tests.compiler.for_absent_gpu FOLDER`: compiles graphs, most of them of training, for an
H200 that is not there.

Dynamo and AOTAutograd trace fake tensors, for which absent_gpu.cpp is device enough; torch looks for it as it is imported.
Graphs are lowered, and their kernels defined, as on a GPU. For one of each kind of Triton's candidates the text is generated, and
what its launches ask of sizes is encoded. Nothing is compiled or run. Prints for each case, as JSON, the number of its programs,
the families of their kernels, the number of texts, failures, and warnings.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import sympy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from polytile.candidates.candidate import Candidate
from polytile.candidates.triton import TritonCandidate
from polytile.compiler.backend import polytile
from polytile.compiler.programs import CompiledProgram, compiled_programs
from polytile.counters import counters
from polytile.frontend.attention import dropout, whole
from polytile.runtime.formula import encode
from tests.packages.on_stub import stand_in

Function = Callable[..., Tensor]
OPTIONS = {"persist": False, "tune": "off", "stall": "compile", "on_failure": "library"}
"""Programs are made before a call goes on, nothing is measured, and a case that fails keeps no other from being tried."""


def written_out(tokens: Tensor, head: int) -> Tensor:
    """nanoGPT's attention with dropout, of q, k and v side by side."""
    q, k, v = (each.transpose(1, 2) for each in tokens.unflatten(-1, (3, 768 // head, head)).unbind(2))
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = (q @ k.transpose(-2, -1) * head**-0.5).masked_fill(~seen, -torch.inf)
    return (F.dropout(torch.softmax(scores, dim=-1), 0.1) @ v).transpose(1, 2).flatten(2)


def masked(q: Tensor, k: Tensor, lengths: Tensor) -> Tensor:
    seen = torch.arange(k.shape[2], device=k.device) < lengths[:, None, None, None]
    return F.scaled_dot_product_attention(q, k, k, seen, enable_gqa=True)


def biased(q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, k, bias)


def feed_forward(x: Tensor, norm: Tensor, up: Tensor, gate: Tensor, down: Tensor) -> Tensor:
    y = F.rms_norm(x, x.shape[-1:], norm)
    return x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)


def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(F.linear(x, weight, bias)), weight.shape[:1], bias)


def experts(x: Tensor, up: Tensor, down: Tensor, ends: Tensor) -> Tensor:
    return torch._grouped_mm(F.silu(torch._grouped_mm(x, up, offs=ends)), down, offs=ends)


def dequantised(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return F.relu(x @ (weight.to(x.dtype) * scale).t())


def given(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="cuda", requires_grad=dtype.is_floating_point)


def integers(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return given(*shape, dtype=dtype)


# Dynamo takes integers as sizes that may change.
CASES: dict[str, tuple[Function, Callable[[], tuple[Tensor | int, ...]], dict[str, Any]]] = {
    "dropout": (lambda tokens: written_out(tokens, 64), lambda: (given(8, 512, 2304),), {}),
    "dropout by the library": (
        lambda tokens: written_out(tokens, 64), lambda: (given(8, 512, 2304),), {"attention_dropout": "library"},
    ),
    "dropout, heads of any size": (written_out, lambda: (given(8, 512, 2304), 64), {}),
    "masked attention": (masked, lambda: (given(4, 8, 300, 64), given(4, 2, 300, 64), integers(4)), {}),
    "biased attention": (biased, lambda: (given(4, 8, 300, 64), given(4, 8, 300, 64), given(8, 300, 300)), {}),
    "feed-forward": (
        feed_forward, lambda: (given(4, 90, 256), given(256), given(512, 256), given(512, 256), given(256, 512)), {},
    ),
    "norm after a product": (normed, lambda: (given(90, 256), given(128, 256), given(128)), {}),
    "a number of any sign": (
        lambda x, weight, by: torch.relu(x @ weight) * by, lambda: (given(90, 256), given(256, 128), 3), {},
    ),
    "experts": (experts, lambda: (given(300, 256), given(8, 256, 512), given(8, 512, 256), integers(8)), {}),
    "dequantised weights": (
        dequantised, lambda: (given(90, 256), integers(128, 256, dtype=torch.int8), given(128, 1)), {},
    ),
}  # fmt: skip


def absent_gpu(folder: Path) -> None:
    """Makes this process, for which absent_gpu.cpp has been loaded, believe in an H200."""
    stand_in(folder)
    torch.cuda._lazy_init = lambda: None  # type: ignore[assignment]
    torch.cuda.get_rng_state = lambda *_: torch.zeros(16, dtype=torch.uint8)  # type: ignore[assignment]
    torch.cuda.set_rng_state = lambda *_: None  # type: ignore[assignment]
    dropout._served = lambda device, dtype: 16 // dtype.itemsize  # type: ignore[assignment]
    whole._serves_efficiently = lambda *_: False  # asks torch about tensors in memory, as the one above does


def programs_of(name: str) -> list[CompiledProgram]:
    """What a case is compiled to."""
    function, inputs, options = CASES[name]

    def compile_alone(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        held.append(polytile(graph, examples, options={**OPTIONS, **options}))
        return graph.forward

    held: list[Any] = []
    before = compiled_programs()
    torch._dynamo.reset()
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        tensors = inputs()
        torch.compile(lambda *each: function(*each), backend=compile_alone, dynamic=True, fullgraph=True)(*tensors)
    return [program for program in compiled_programs() if program not in before]


def one_of_each_kind(candidates: Iterable[Candidate]) -> list[TritonCandidate]:
    return list({each.name.split()[0]: each for each in candidates if isinstance(each, TritonCandidate)}.values())


def encoded(candidate: TritonCandidate) -> int:
    """The number of texts of a candidate, whose launches ask of sizes only what can be computed in a call."""
    positions = {symbol: place for place, symbol in enumerate(candidate.work.kernel.symbols)}
    kernels = [candidate.specialise(facts).kernel for facts in candidate.probes]
    for kernel in kernels:
        for e in asked(kernel):
            encode(sympy.sympify(e), positions)
    return len(kernels)


def asked(kernel: Any) -> Iterator[Any]:
    for scratch in kernel.scratch:
        yield scratch.size
    for launch in kernel.launches:
        yield from launch.grid
        for descriptor in launch.descriptors:
            yield from (*descriptor.shape, *descriptor.strides)


class Kept(logging.Handler):
    """The warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def main(folder: Path) -> None:
    absent_gpu(folder)
    kept, found = Kept(), {}
    logging.getLogger("polytile").addHandler(kept)
    for name in CASES:
        failures = counters["failures"]
        programs = programs_of(name)
        kernels = list({kernel for program in programs for kernel in program.multikernels})
        generated = [candidate for kernel in kernels for candidate in one_of_each_kind(kernel.candidates)]
        found[name] = {
            "programs": len(programs), "families": sorted({kernel.spec.family for kernel in kernels}),
            "texts": sum(map(encoded, generated)), "failures": counters["failures"] - failures, "warnings": kept.texts[:],
        }  # fmt: skip
        kept.texts.clear()
    print(json.dumps(found))


if __name__ == "__main__":
    del os.environ["LD_PRELOAD"]  # compilers shall not load it
    main(Path(sys.argv[1]))
