"""torch's structured trace, which tlparse shows, has what polytile made of each graph."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import polytile
from polytile.compiler import backend


class Kept(logging.Handler):
    """Keeps the artifacts of polytile's: name and text."""

    def __init__(self) -> None:
        super().__init__()
        self.artifacts: dict[str, str] = {}
        self.frames: list[object] = []

    def emit(self, record: logging.LogRecord) -> None:
        metadata = getattr(record, "metadata", {})
        name = metadata.get("artifact", {}).get("name", "")
        if name.startswith("polytile_"):
            self.artifacts[name] = getattr(record, "payload", "")
            self.frames.append(metadata.get("frame_id"))


@pytest.fixture
def trace() -> Iterator[Kept]:
    kept, log = Kept(), logging.getLogger("torch.__trace")
    log.addHandler(kept)
    yield kept
    log.removeHandler(kept)


def test_each_graph_leaves_its_operators_and_its_program(trace: Kept, empty_cache: Path) -> None:
    def run() -> None:
        torch._dynamo.reset()
        with torch.no_grad():
            polytile.compile(lambda x: torch.softmax(x * 2, -1))(torch.randn(30, 70))

    run()
    operators, program = sorted(trace.artifacts)
    assert operators.endswith("_operators") and program.endswith("_program") and None not in trace.frames
    assert "aten.exp.default: generated" in trace.artifacts[operators], trace.artifacts[operators]
    assert " = exp " in trace.artifacts[program], trace.artifacts[program]
    trace.artifacts.clear()
    run()
    assert [name.rpartition("_")[2] for name in trace.artifacts] == ["operators"], "the program is read from the cache directory"


def test_without_a_trace_no_text_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    backend._trace("graph", (), lambda: pytest.fail("nobody reads it"))
