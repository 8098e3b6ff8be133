"""Axes without elements: results are eager's, and arguments made up for them have no elements that nobody would write."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import polytile
from polytile.runtime.child_process import import_path
from tests.waiting import PATIENCE

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "cumsum": lambda x: x.cumsum(1) * 2 + 1,
    "sum": lambda x: (x * 2).sum(1),
    "softmax": lambda x: torch.softmax(x + 1, 1),
    "product": lambda x: (x.transpose(1, 2) @ x).relu(),
    "rows in another order": lambda x: x.index_select(1, torch.arange(x.shape[1]).flip(0)) + 1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(5, 0, 3), (0, 4, 3), (5, 4, 0)])
@pytest.mark.parametrize("force", ["", "interpreted"])
def test_results_are_eagers_at_once_and_later(
    name: str, shape: tuple[int, ...], force: str, caplog: pytest.LogCaptureFixture
) -> None:
    function = FUNCTIONS[name]
    options = {"stall": "never", "learned": True, "force": force}
    compiled = torch.compile(function, backend="polytile", dynamic=True, options=options)
    x = torch.randn(*shape)
    expected = function(x)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "polytile"):
        for _ in range(2):
            result = compiled(x)
            assert result.stride() == expected.stride() and torch.equal(result, expected)
            assert polytile.wait()
    assert not [r for r in caplog.records if "'force'" not in r.getMessage()]


PROGRAM = """
import torch, polytile
compiled = torch.compile(lambda x: x.cumsum(1) * 2 + 1, backend="polytile", dynamic=True)
with torch.no_grad():
    compiled(torch.randn(5, 0, 3))
    polytile.wait()
"""


def test_what_a_scan_of_nothing_does_not_write_is_not_called_wrong(empty_cache: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POLYTILE_")}
    environment = {**kept, "POLYTILE_CACHE_DIR": str(empty_cache), "PYTHONPATH": import_path()}
    ended = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0 and "wrong result" not in ended.stderr, ended.stderr
