"""What each schedule's docstring holds: code, legality, cost, and its name elsewhere, by which a reader may know it."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "polytile"
MODULES = (
    "matmul/cpp/tile.py", "matmul/cpp/stream.py", "matmul/cpp/dot.py", "matmul/triton/split_k.py", "matmul/triton/stream.py",
    "attention/cpp/flash.py", "attention/cpp/split.py", "attention/cpp/backward.py", "attention/triton/flash.py",
    "attention/triton/split.py", "attention/triton/specialised.py", "attention/triton/backward.py",
    "attention/triton/specialised_backward.py", "schedule/gpu/segments.py",
)  # fmt: skip
"""Schedules with a module of their own, whose docstring is the module's."""
FUNCTIONS = {
    "schedule/gpu/catalogue.py": "blocks", "matmul/triton/schedules.py": "kernel, config, facts, chip",
    "matmul/triton/grouped.py": "kernel, config, facts, chip",
}  # fmt: skip
"""Modules with a function for each schedule, and the parameters by which these are known."""
CONSTANTS = "schedule/cpu/catalogue.py"
OTHERS = re.compile(r"BLAS|BLIS|CUB|CUDA|CUTLASS|FlashAttention|Flash-Decoding|Halide|Intel|Triton|TVM")


def docstrings() -> Iterator[tuple[str, str]]:
    """Each schedule by its module and name, and its docstring."""
    for module in MODULES:
        yield module, ast.get_docstring(_tree(module)) or ""
    for module, parameters in FUNCTIONS.items():
        functions = [node for node in _tree(module).body if isinstance(node, ast.FunctionDef)]
        for node in functions:
            if _parameters(node) == parameters and node.name[0] != "_" and node.name != "generate":
                yield f"{module}: {node.name}", ast.get_docstring(node) or ""
    body = _tree(CONSTANTS).body
    for node, text in itertools.pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(text, ast.Expr):
            yield f"{CONSTANTS}: {ast.unparse(node.targets[0])}", str(ast.literal_eval(text.value))


def _tree(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text(encoding="utf-8"))


def _parameters(node: ast.FunctionDef) -> str:
    arguments = node.args
    return ", ".join(each.arg for each in [*arguments.args, *([arguments.kwarg] if arguments.kwarg else [])])


SCHEDULES = dict(docstrings())


def test_all_schedules_are_looked_at() -> None:
    assert sum(name.startswith("schedule/gpu/catalogue") for name in SCHEDULES) >= 9
    assert sum(name.startswith(CONSTANTS) for name in SCHEDULES) >= 9
    assert sum(name.startswith("matmul/triton/schedules") for name in SCHEDULES) >= 3


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_says_what_it_does_where_it_is_legal_what_it_costs_and_its_name_elsewhere(name: str) -> None:
    text = SCHEDULES[name]
    assert re.search(r"^ {4}\S", text, re.MULTILINE), "code"
    assert re.search(r"\b[Ll]egal\b", text)
    assert re.search(r"\b(Moves|Costs|Takes|Reads)\b", text)
    assert OTHERS.search(text), "its name elsewhere"
