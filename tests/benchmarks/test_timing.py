"""The timing harness: who takes turns, what is summarised, and what a result says. No test asserts a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import corpus, record
from benchmarks.timing import FIRST_CALLS, Comparison, Timing, compare, geomean, quantile


def timing(name: str, *samples: float) -> Timing:
    return Timing(name, samples, 1)


def test_quantiles_are_linear_between_samples() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.15) == pytest.approx(1.5)
    with pytest.raises(ValueError, match="no samples"):
        quantile([], 0.5)


def test_one_slow_stretch_does_not_move_the_reported_number() -> None:
    quiet, disturbed = timing("a", *[1.0] * 10), timing("a", *[1.0] * 6, *[1.4] * 4)
    assert quiet.low == disturbed.low == 1.0
    assert disturbed.spread > quiet.spread == 0


def test_a_ratio_above_one_means_faster() -> None:
    comparison = Comparison({"old": timing("old", 2.0, 2.0), "new": timing("new", 1.0, 0.5)}, others=0.0)
    assert comparison.ratio("new", "old") > 1 > comparison.ratio("old", "new")
    assert geomean([0.5, 2.0]) == pytest.approx(1.0)


def test_callables_take_turns_and_the_order_reverses() -> None:
    seen: list[str] = []
    calls = {"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}
    found = compare(calls, seconds=0.0, burst_seconds=0.0, warmups=1, min_rounds=4)
    sizing = ["a"] * FIRST_CALLS + ["b"] * FIRST_CALLS
    assert seen == ["a", "b"] + sizing + ["a", "b", "b", "a"] * 2  # warm-up, sizing, four rounds
    assert {name: len(one.samples) for name, one in found.timings.items()} == {"a": 4, "b": 4}


def test_a_result_file_carries_the_environment_and_leaves_no_temporary_files(tmp_path: Path) -> None:
    comparison = Comparison({"a": timing("a", 1.0)}, others=0.25)
    path = record.write("example", comparison.as_json(), tmp_path)
    content = json.loads(path.read_text())
    assert content["suite"] == "example" and content["environment"]["torch"]
    assert content["results"]["timings"]["a"]["seconds"] == 1.0
    assert list(tmp_path.iterdir()) == [path]


def test_the_documents_have_paragraphs_of_many_lengths() -> None:
    texts = corpus.by_length(24)
    assert len(texts) >= 20 and max(texts) <= corpus.LONGEST
    assert all(tokens.shape == (1, length) and int(tokens.max()) < 256 for length, tokens in texts.items())
