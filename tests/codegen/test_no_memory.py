"""A generated C++ kernel that finds no memory for its work says so, and the call raises an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from polytile.attention import cpp as attention
from polytile.attention.arguments import make_args
from polytile.attention.problem import AttentionProblem
from polytile.candidates.cpp import CppCandidate
from polytile.candidates.cpp_attention import FEWEST_LANES
from polytile.candidates.entries import NativeEntry
from polytile.codegen.cpp.prelude import parts_of, prelude
from polytile.codegen.function_names import ENTRY
from polytile.matmul.cpp import GemmConfig, GemmSpec, generate
from polytile.problem import Config
from polytile.runtime import toolchain
from polytile.runtime.compile import compile_cpp
from polytile.runtime.dispatcher import Interface
from polytile.runtime.launcher import new_dispatcher
from tests.codegen import helpers
from tests.codegen.helpers import F32, P0, R0, S0, S1, load, loop, op, store

ROW = P0 * S1 + R0
DECLARED = 'extern "C" void* malloc(unsigned long);'
NONE = 'extern "C" void* none_left(unsigned long) { return nullptr; }\n#define malloc none_left\n'

ATTENTIONS = {
    "flash": AttentionProblem(F32, None), "split": AttentionProblem(F32, None),
    "backward": AttentionProblem(F32, None, backward=True), "scores": AttentionProblem(F32, None, window=(4, 4)),
}  # fmt: skip
SIZE = {"B": 1, "Hq": 2, "Hkv": 2, "Mq": 9, "Mkv": 40, "D": 16, "Dv": 16}
FORMS = {
    "tile_packed": (GemmConfig("tile_packed", 6, 4, kc=64, mc=24, nc=128), GemmSpec()),
    "small": (GemmConfig("small", 8, 2, kc=64), GemmSpec()),
}


def attention_source(variant: str) -> str:
    configs = {
        "flash": Config.of(variant="flash", rows=12, keys=64, mr=6, nv=2),
        "split": Config.of(variant="split", keys=64, mr=2, nv=2, columns=4),
        "backward": Config.of(variant="backward", rows=12, keys=64, mr=6, nv=2),
    }
    lanes = max(toolchain.find().lanes, FEWEST_LANES)
    return str(attention.generate(ATTENTIONS[variant], configs.get(variant, configs["flash"]), ENTRY, lanes))


def product_source(form: str) -> str:
    config, spec = FORMS[form]
    body = generate(spec, config, ENTRY, None, max(toolchain.find().lanes, 4))
    return prelude(parts_of(body)) + body


def loop_source(variant: str) -> str:
    """A softmax that reads each row three times."""
    x = load("x", ROW)
    y = op("exp", op("sub", op("sin", x), helpers.expr.reduce("max", F32, op("sin", x))))
    case = helpers.Case(loop([store("o", ROW, op("div", y, helpers.expr.reduce("sum", F32, y)))], {P0: S0}, {R0: S1}),
                        {"x": F32, "o": F32}, compiled=False)  # fmt: skip
    found = [c for c in case.candidates if isinstance(c, CppCandidate) and c.config["variant"] == variant]
    return found[0].source


def product_args() -> list[torch.Tensor | int]:
    a, b, c = torch.randn(1, 200, 500).transpose(1, 2), torch.randn(1, 70, 200).transpose(1, 2), torch.zeros(1, 500, 70)
    return [a, b, c, 1, 500, 70, 200, *a.stride(), *b.stride(), *c.stride()]


def loop_args() -> list[torch.Tensor | int]:
    return [torch.randn(3, 20_000), torch.zeros(3, 20_000), 3, 20_000]


def cases() -> Iterator[tuple[str, Callable[[], str], Callable[[], list[torch.Tensor | int]]]]:
    for variant, problem in ATTENTIONS.items():
        yield f"attention {variant}", lambda v=variant: attention_source(v), lambda p=problem: list(make_args(p, SIZE))
    for form in FORMS:
        yield f"product {form}", lambda f=form: product_source(f), product_args
    yield "loop that keeps its rows", lambda: loop_source("persistent"), loop_args


CASES = {name: (source, args) for name, source, args in cases()}


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_that_finds_no_memory_says_so(name: str) -> None:
    make, arguments = CASES[name]
    text = make()
    assert DECLARED in text
    library = compile_cpp("no_memory", text.replace(DECLARED, NONE, 1)).result()
    given = arguments()
    integers = [value for value in given if isinstance(value, int)]
    for threads in (1, 2):
        entry = NativeEntry(library.address(ENTRY), threads, library)
        dispatch = new_dispatcher(Interface("starved", [0] * len(integers), lambda key, args, entry=entry: entry))
        with pytest.raises(torch.OutOfMemoryError, match="'starved': there is no memory left"):
            dispatch(*given)
