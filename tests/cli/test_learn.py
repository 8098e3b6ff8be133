"""`polytile learn`: collecting on this machine, training, judging and showing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from polytile import options
from polytile.learn import installed, train
from polytile.learn.examples import examples
from polytile.learn.model import save
from polytile.store.jsonl import header, line
from polytile.store.reading import Record, records
from polytile.tuning import racing
from tests.cli.helpers import new_process, run
from tests.learn.conftest import small_grid
from tests.learn.synthetic import MACHINE
from tests.learn.synthetic import records as synthetic


def exported(path: Path, found: list[Record]) -> Path:
    path.write_text(header() + "".join(map(line, found)))
    return path


def test_collecting_measures_every_candidate_and_goes_on_where_it_stopped(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(racing._Race, "disturbed", lambda race: 0.0)  # times under load are no examples
    new_process()
    words = ("learn", "collect", "--operations", "row_sum,mm", "--most", 40_000, "--into", tmp_path / "c.sqlite3")
    with options.override(isolation="never"):
        first = run(*words, "--count", 1)
        assert first.exit_code == 0 and "2 of 2 problems" in first.output, first.output
        assert first.output.startswith("2 problems on cpu, every candidate of each.")
        before = len(records(tmp_path / "c.sqlite3"))
        new_process()
        again = run(*words, "--count", 2)
    assert "[1/2] row_sum float32" in again.output and ": 0 candidates measured" in again.output
    found = examples(records(tmp_path / "c.sqlite3"))
    assert len(found.examples) >= 4 > found.without_terms == 0 and len(records(tmp_path / "c.sqlite3")) > before
    assert {"cpp", "library"} == {offer.origin for example in found.examples for offer in example.offers}
    for example in found.examples:
        assert any(name.startswith("work.") for offer in example.offers for name in offer.terms)
    new_process()


def test_a_model_is_trained_judged_and_shown(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    small_grid(monkeypatch)
    data = exported(tmp_path / "measured.jsonl", synthetic(120))
    trained = run("learn", "train", data, "--python")
    path = installed.users() / "mm-cuda-sm90.json"
    assert trained.exit_code == 0 and f"Written to {path}" in trained.output and path.with_suffix(".py").exists()
    installed.usable.cache_clear()
    with options.override(learned=True):
        shown = run("learn", "show")
        judged = run("learn", "evaluate", data)
        folds = run("learn", "evaluate", data, "--folds")
        text = run("learn", "show", path, "--python")
    assert "trees for mm on cuda sm90" in shown.output and "max_wrong_speedup" in shown.output
    assert judged.exit_code == folds.exit_code == 0 and "Learned choice of mm on cuda sm90" in judged.output
    assert "configs" in judged.output and "Where first choices are worst" in judged.output
    assert "def tree_0(x):" in text.output
    installed.usable.cache_clear()


def test_a_model_that_is_no_better_is_written_and_its_status_says_so(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    small_grid(monkeypatch)
    done = run("learn", "train", exported(tmp_path / "m.jsonl", synthetic(120, penalty=0.0)), "--out", tmp_path)
    assert done.exit_code == 1 and "but not to be used: on" in done.output


def test_a_model_is_judged_on_another_device(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    small_grid(monkeypatch)
    save(train.train(examples(synthetic(120)).examples), tmp_path / "model.json")
    slower = tuple({**MACHINE, "clock": "1.7e9"}.items())
    other = [
        dataclasses.replace(record, measurement=dataclasses.replace(record.measurement, machine=slower))
        for record in synthetic(30, seed=5, device="cuda-other")
    ]
    data = exported(tmp_path / "other.jsonl", other)
    done = run("learn", "evaluate", data, "--model", tmp_path / "model.json", "--everything")
    assert done.exit_code == 0 and "| kernel" in done.output, done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("collect",), "name what to measure, such as --operations mm,softmax"),
        (("collect", "--operations", "cake"), "there is no operation 'cake'"),
        (("collect", "--operations", "mm", "--dtypes", "int8"), "'int8' is none: float32"),
        (("collect", "--operations", "mm", "--device", "cuda:99"), "nothing can be measured on the device 'cuda:99'"),
        (("train", "none.sqlite3"), "none.sqlite3"),
        (("train",), "nothing was collected here yet; run `polytile learn collect` first"),
        (("show", "none.json"), "cannot be read"),
    ],
)
def test_what_is_not_there_is_named(empty_cache: Path, words: tuple[str, ...], says: str) -> None:
    done = run("learn", *words)
    assert done.exit_code == 2 and says in " ".join(done.output.replace("│", " ").split())


def test_operations_are_listed() -> None:
    listed = run("learn", "collect", "--operations", "list").output.split()
    assert {"mm", "addmm", "bmm", "mixed_mm", "attention"} <= set(listed)
