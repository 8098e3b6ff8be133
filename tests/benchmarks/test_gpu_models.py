"""What the GPU's model sweep makes of its cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import models
from benchmarks.gpu.grid import Cells


def cell(shape: tuple[int, int], **us: float) -> dict[str, Any]:
    times = {name.replace("best", "peer, max-autotune"): time for name, time in us.items()}
    seconds = dict.fromkeys(times, 1.0)
    return {"function": "bert", "dtype": models.LABEL, "shape": list(shape), "us": times, "wrong": "", "first_calls_s": seconds}


def test_polytile_is_held_against_eager_and_the_better_of_the_peers_modes(capsys: pytest.CaptureFixture[str]) -> None:
    models.report([cell((1, 16), eager=10.0, polytile=5.0, peer=4.0, best=20.0), cell((8, 64), eager=10.0)])
    lines = [[word.strip() for word in line.split("|")] for line in capsys.readouterr().out.splitlines()]
    assert next(line[7:9] for line in lines if "1×16" in line) == ["0.50", "1.25"]
    assert next(line[3:5] for line in lines if line[1:3] == ["bert", "2"]) == ["0.500, worst 0.50", "1.250, worst 1.25"]


def test_a_model_whose_contestants_are_all_known_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = Cells(tmp_path / "cells.jsonl")
    for shape in models.SHAPES:
        cells.add(cell(shape, eager=1.0, polytile=1.0))
    monkeypatch.setattr(models, "MODELS", {})
    models.measure("bert", ("eager", "polytile"), cells, 0.0)
    with pytest.raises(KeyError):
        models.measure("bert", ("eager", "peer"), cells, 0.0)
