"""Sizes of calls, recorded while a program runs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import polytile
from polytile.cli.targets import Kind, calls_of
from polytile.errors import HintError, SizesError
from polytile.runtime import sizes_file, sizes_seen
from polytile.runtime.sizes_file import Seen
from tests.cli.helpers import new_process, run


@pytest.fixture(autouse=True)
def nothing_is_recorded() -> Iterator[None]:
    yield
    if sizes_seen._recorder is not None:
        sizes_seen._recorder.stop()


def seen_in(path: Path) -> Seen:
    (seen,) = sizes_file.read(path).values()
    return seen


class Ticking:
    """A clock by which calls take `call` seconds, and looks `look`."""

    def __init__(self, call: float, look: float) -> None:
        self.now, self.call, self.look, self.looked = 0.0, call, look, False

    def __call__(self) -> float:
        if self.looked:
            self.now += self.look
        self.looked = not self.looked
        return self.now


def sampler() -> sizes_seen.Sampler:
    return sizes_seen.Sampler(sizes_seen.Graph("a", "", {"s0": "x"}, ((0, None),)))


@pytest.mark.parametrize("call", [3e-6, 1e-4, 1e-2])
def test_looking_takes_less_than_a_thousandth_of_the_time(call: float, monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(3)
    looked, clock = sampler(), Ticking(call, 4e-6)
    monkeypatch.setattr(sizes_seen, "clock", clock)
    looked.begin()
    clock.looked, looks = False, 0
    while clock.now < 2000 * call / 4e-6 * 5e-6 + 5:
        clock.now += call * looked._gap
        looked.look([7])
        looks += 1
    assert looks * 5e-6 < 0.001 * clock.now
    assert looks > 100


def test_estimates_are_near_the_true_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where sizes come in turns, which looks at regular distances would miss."""
    random.seed(1)
    looked, clock = sampler(), Ticking(1e-4, 4e-6)
    monkeypatch.setattr(sizes_seen, "clock", clock)
    looked.begin()
    clock.looked, left = False, 1
    for number in range(400_000):
        clock.now += 1e-4
        left -= 1
        if left == 0:
            left = looked.look([8 if number % 4 == 0 else 100])
    found = looked.take().calls
    assert found[(8,)] == pytest.approx(100_000, rel=0.1)
    assert found[(100,)] == pytest.approx(300_000, rel=0.1)


@pytest.mark.parametrize("wrapper", ["cpp", "python"])
def test_sizes_of_calls_are_recorded(wrapper: str, tmp_path: Path) -> None:
    def shifted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + 1) @ y

    file = tmp_path / "sizes.json"
    with polytile.record_sizes(file):
        compiled = polytile.compile(shifted, options={"wrapper": wrapper, "race_eager": False})
        with torch.no_grad():
            for rows in [8] * 30 + [31] * 10:
                compiled(torch.randn(rows, 16), torch.randn(16, 32))
    compiled(torch.randn(77, 16), torch.randn(16, 32))
    seen = seen_in(file)
    assert list(seen.names) == ["s0", "s1", "s2"]
    assert "'x'" in seen.names["s0"]
    assert "shifted" in seen.about
    assert {sizes[0] for sizes in seen.calls} <= {8, 31}
    assert seen.total > 0


def test_a_program_that_runs_already_is_recorded_from_now_on(tmp_path: Path) -> None:
    compiled = polytile.compile(lambda x: torch.softmax(x * 2, -1), options={"race_eager": False})
    inputs = {rows: torch.randn(rows, 200) for rows in (5, 6)}
    for _ in range(20):
        compiled(inputs[5])
    from polytile.runtime import compile as compiling

    compiling.settle(60)
    with polytile.record_sizes(tmp_path / "sizes.json"):
        for _ in range(20):
            compiled(inputs[6])
    assert set(seen_in(tmp_path / "sizes.json").calls) == {(6, 200)}


def test_training_steps_count_once(tmp_path: Path) -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (torch.sigmoid(x) * x).sum()

    with polytile.record_sizes(tmp_path / "sizes.json"):
        compiled = polytile.compile(loss)
        for _ in range(3):
            compiled(torch.randn(40, 50, requires_grad=True)).backward()
    assert set(seen_in(tmp_path / "sizes.json").calls) == {(40, 50)}


def test_processes_add_to_one_file(tmp_path: Path) -> None:
    file = tmp_path / "sizes.json"
    for calls in (3.0, 4.0):
        sizes_file.add(file, [Seen("a", "f", {"s0": "x"}, {(8,): calls})])
    sizes_file.add(file, [Seen("b", "g", {"s0": "x"}, {(9,): 1.0})])
    assert {name: seen.calls for name, seen in sizes_file.read(file).items()} == {"a": {(8,): 7.0}, "b": {(9,): 1.0}}


def test_of_very_many_sizes_the_frequent_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes_file, "MOST_SIZES", 16)
    counts: dict[tuple[int, ...], float] = {}
    for number in range(4000):
        sizes_file.count(counts, (number if number % 3 else 0,), 1.0)
    assert len(counts) <= 16
    assert max(counts, key=lambda sizes: counts[sizes]) == (0,)


def test_hints_come_from_a_file(tmp_path: Path) -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1)

    file = tmp_path / "sizes.json"
    with polytile.record_sizes(file):
        compiled = polytile.compile(doubled, options={"race_eager": False})
        compiled(torch.randn(30, 64))
    seen = seen_in(file)
    sizes_file.add(file, [Seen(seen.graph, "", seen.names, {(48, 80): 100.0, (16, 33): 50.0, (2, 2): 0.1})])
    torch._dynamo.reset()
    hinted = polytile.compile(doubled, hints=file)
    hinted(torch.randn(30, 64))
    chosen = {
        sizes for decision in polytile.explain(hinted, torch.randn(30, 64)).decisions for sizes in [decision.sizes]
    }
    assert {dict(sizes)["n0"] for sizes in chosen} >= {48, 16}
    assert not any(dict(sizes)["n0"] == 2 for sizes in chosen)


def test_tune_takes_the_sizes_of_a_file(tmp_path: Path) -> None:
    script, file = tmp_path / "squares.py", tmp_path / "sizes.json"
    script.write_text("import torch\ndef f(x): return torch.softmax(x * x, -1)\n")
    with polytile.record_sizes(file):
        compiled = polytile.compile(calls_of(f"{script}:f", ["9x40"], Kind())[0], options={"race_eager": False})
        compiled(torch.randn(33, 90))
    new_process()
    told = run("tune", f"{script}:f", "--shapes", "9x40", "--quick", "--sizes", file).output
    assert "n0=33 n1=90" in told


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"format": "polytile plan"}))
    for path, why in ((other, "is no file of recorded sizes"), (tmp_path / "none.json", "sizes record")):
        with pytest.raises(SizesError, match=why):
            sizes_file.read(path)
    with pytest.raises(HintError, match="is no file of recorded sizes"):
        polytile.compile(torch.relu, hints=other)
    with pytest.raises(SizesError, match="is no file of recorded sizes"):
        polytile.record_sizes(other)
    with pytest.raises(SizesError, match="cannot be recorded"):
        polytile.record_sizes(tmp_path / "no folder" / "sizes.json")
    with polytile.record_sizes(tmp_path / "sizes.json"), pytest.raises(SizesError, match="already"):
        polytile.record_sizes(tmp_path / "sizes.json")


SERVER = """
import torch, polytile

@polytile.compile
def scaled(x):
    return torch.softmax(x, -1) * 3

for rows in (8, 8, 8, 30):
    scaled(torch.randn(rows, 300))
raise SystemExit(3)
"""


def test_the_command_records_a_program_and_shows_what_it_saw(tmp_path: Path) -> None:
    script, file = tmp_path / "server.py", tmp_path / "sizes.json"
    script.write_text(SERVER)
    words = ["sizes", "record", "-o", str(file), "--", sys.executable, str(script)]
    command = "from polytile.cli import main; main()"
    own: Any = {**os.environ, "POLYTILE_RACE_EAGER": "0"}
    done = subprocess.run([sys.executable, "-c", command, *words], env=own, capture_output=True, text=True, timeout=300)
    assert done.returncode == 3, done.stderr
    assert "1 graphs, about" in done.stderr
    told = run("sizes", "show", file).output
    assert "server.py" in told
    assert "| 8 | 300 |" in " ".join(told.split())


def test_the_command_says_what_cannot_be_run(tmp_path: Path) -> None:
    result = run("sizes", "record", "-o", tmp_path / "sizes.json", "--", str(tmp_path / "nothing"))
    assert result.exit_code == 2
    assert "nothing" in result.output
