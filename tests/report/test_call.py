"""A report on a call's profile: the file, its tables and its page."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from polytile.errors import ReportError
from polytile.report.call import (
    APART,
    AS_IT_RUNS,
    CALL,
    HOST,
    CallReport,
    Line,
    Step,
    View,
    is_profile,
    read,
    save,
    tables,
)
from polytile.report.html import call_page
from polytile.report.lanes import COLOURS, LEFT, Chart
from tests.cli.helpers import run
from tests.report.test_html import HOSTILE, Parsed

STREAM = "device 0, stream 7"
STEPS = (
    Step(CALL, "call", "", 0.0, 40e-6), Step(HOST, "mm_01 (aten.mm)", "", 10e-6, 5e-6), Step(HOST, "aten::sort", "", 20e-6, 8e-6),
    Step(STREAM, "polytile_mm_01", "mm_01 (aten.mm)", 15e-6, 20e-6), Step(STREAM, "radix", "aten::sort", 35e-6, 10e-6),
    Step(STREAM, "radix", "aten::sort", 40e-6, 15e-6),
)  # fmt: skip
REPLAYED = (Step(STREAM, "polytile_mm_01", "", 0.0, 20e-6, True), Step(STREAM, "radix", "", 20e-6, 10e-6, True))


def call_of(*steps: Step, name: str = "block") -> CallReport:
    lines = (Line("aten::sort", False, 1.0, 8e-6, 25e-6), Line("mm_01 (aten.mm)", True, 1.0, 5e-6, 20e-6))
    views = (View(APART, steps or STEPS), View(AS_IT_RUNS, REPLAYED))
    return CallReport("call.json", name, 60e-6, {"accelerator": "H200", "torch": "2.13"}, lines, views)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save(tmp_path / "call.json", call_of())
    return tmp_path / "call.json"


def test_a_saved_profile_is_read_as_it_was(file: Path) -> None:
    found = read(file)
    assert is_profile(file) and (found.lines, found.views, found.wall) == (call_of().lines, call_of().views, 60e-6)


def test_its_tables_say_what_ran_when_and_what_a_graph_launched() -> None:
    made = dict(tables(call_of()))
    said = dict(made["summary"].rows)
    assert said[f"{APART}, {STREAM}"] == "3 steps, busy for 40.0 µs"  # two overlap for 5 µs
    assert said[f"{AS_IT_RUNS}, {STREAM}"] == "2 steps, 2 of them launched by CUDA graphs, busy for 30.0 µs"
    assert said[APART] == "55.0 µs from the call to the last step's end" and said["a call without a profiler"] == "60.0 µs"
    assert made["lines"].rows[-1] == ("all of these", 2.0, pytest.approx(13e-6), pytest.approx(45e-6))
    assert [row[-1] for row in made["steps"].rows] == [""] * 6 + ["graph"] * 2


def test_a_step_of_the_host_and_what_it_launched_have_one_colour() -> None:
    chart = Chart(call_of().views[0])
    call, product, sort, *device = list(chart.bars())
    assert [bar.colour for bar in device] == [product.colour, sort.colour, sort.colour] and call.colour == COLOURS
    assert [(group.name, group.letter) for group in chart.groups()] == [("mm_01 (aten.mm)", "A"), ("aten::sort", "B")]
    assert call.x == LEFT and call.y < product.y == sort.y < device[0].y == device[2].y
    assert product.x + product.width == pytest.approx(device[0].x, abs=0.1)  # begins where the launch ends
    assert chart.groups()[0].seconds == "25.0 µs" and "launched by aten::sort" in device[1].text


def test_bars_of_many_steps_stay_apart_and_narrow_ones_have_no_letter() -> None:
    steps = [Step(STREAM, f"kernel {i}", "", i * 1e-6, 0.9e-6) for i in range(400)]
    chart = Chart(View(APART, tuple(steps)))
    bars = list(chart.bars())
    assert all(bar.x + bar.width < following.x for bar, following in itertools.pairwise(bars))
    assert {bar.letter for bar in bars} == {""} and chart.groups()[28].letter == "AC"


def test_the_page_has_each_view_with_a_list_and_no_markup_of_names() -> None:
    parsed = Parsed(call_page(call_of(Step(HOST, HOSTILE, "", 0.0, 1e-6), name=HOSTILE)))
    sections = [attributes["id"] for tag, attributes in parsed.elements if tag == "section"]
    assert sections[:3] == ["summary", "call-0", "call-1"] and "img" not in {tag for tag, _ in parsed.elements}
    labels = [attributes["aria-label"] or "" for _, attributes in parsed.elements if attributes.get("role") == "img"]
    assert len(labels) == 2 and AS_IT_RUNS in labels[1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"polytile_profile": 2}', "has format 2, and this polytile reads format 1"),
        ('{"polytile_profile": 1, "name"', "cannot be read (JSONDecodeError"),
        ('{"polytile_profile": 1, "name": "f", "lines": [[1]]}', "cannot be read (TypeError"),
    ],
)
def test_a_file_that_is_damaged_or_of_another_version_is_named(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "call.json"
    path.write_text(content)
    with pytest.raises(ReportError) as raised:
        read(path)
    assert words in str(raised.value) and str(path) in str(raised.value)


def test_the_command_writes_the_page_the_tables_and_the_lists(file: Path) -> None:
    output = file.parent / "call.html"
    assert "written" in run("report", file, "-o", output).output and "block" in output.read_text()
    assert "launched by" in run("report", file, "--text").output
    run("report", file, "--csv", "-o", file.parent / "lists")
    assert "2e-05" in (file.parent / "lists" / "steps.csv").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{file}", "{file}"), "a report on one compares nothing"),
        (("{file}", "--kernel", "mm"), "--kernel and --every are for stores"),
        (("{file}", "-o", "{file}"), "is what the report is on"),
    ],
)
def test_what_does_not_go_with_a_profile_is_named(file: Path, words: tuple[str, ...], message: str) -> None:
    result = run("report", *(word.format(file=file) for word in words))
    assert result.exit_code == 2 and message in " ".join(result.output.replace("│", " ").split())
    assert json.loads(file.read_text())
