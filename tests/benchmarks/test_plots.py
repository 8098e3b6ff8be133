"""Heat maps made of result files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import plots


def timings(**seconds: float) -> dict[str, object]:
    return {"timings": {name.replace("_", " "): {"seconds": value} for name, value in seconds.items()}}


def test_ratios_of_loops_by_function_and_shape() -> None:
    cells = {"1x64": {"without_dynamo": timings(polytile=1.0, eager=3.0, inductor=2.0)}}
    drawn = plots.loops({"suite": {"softmax": cells}}, "eager")
    assert (drawn.rows, drawn.columns, drawn.ratios) == (("softmax",), ("1×64",), ((3.0,),))


def test_hints_are_judged_by_the_pick() -> None:
    found = plots.hints({"sizes": {"64": timings(hint_64=1.0, hint_256=2.0, pick=1.0, ATen=5.0)}})
    assert found.rows == ("hint 64", "hint 256") and found.ratios == ((1.0,), (0.5,))


def test_an_image_is_drawn_and_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed; make setup installs it")
    sizes = {"64": timings(hint_64=1.0, hint_256=2.0, pick=1.0)}
    (tmp_path / "demo_hints.json").write_text(json.dumps({"results": {"sizes": sizes}}))
    plots.main(["hints", "loops-eager", "--results", str(tmp_path), "--images", str(tmp_path)])
    assert (tmp_path / "hints.svg").read_text().startswith("<?xml")
    assert "loops-eager: no" in capsys.readouterr().out
