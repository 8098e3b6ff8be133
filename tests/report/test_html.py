"""The HTML of a report: whole in itself, well formed, and with no markup but its own."""

from __future__ import annotations

import base64
import collections
import hashlib
import html.parser
import json
import re

import pytest

from polytile.problem import Outcome
from polytile.report import html as pages_as_html
from polytile.report.html import page
from tests.report.helpers import record, report_of

HOSTILE = "</script><img src=http://example.com/x onerror=alert(1)>&\"'"
VOID = {"meta", "link", "br", "img", "input"}


class Parsed(html.parser.HTMLParser):
    """The elements of a page with their attributes and own text; fails where one is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = collections.defaultdict(list)
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]][-1] += data


@pytest.fixture(scope="module")
def text() -> str:
    rows = [record(HOSTILE, origin=HOSTILE, sizes=(("M", m), ("N", n))) for m in (1, 7) for n in (64, 512)]
    rows += [record("gone", outcome=Outcome.CRASHED, detail=HOSTILE, sizes=(("M", 1), ("N", 64)))]
    return page(report_of(*rows, before=[record()], name=HOSTILE))


def test_nothing_is_outside_the_file(text: str) -> None:
    for tag, attributes in Parsed(text).elements:
        for name in ("src", "href", "action", "srcset", "data", "poster"):
            link = attributes.get(name)
            assert link is None or link.startswith(("#", "data:")), (tag, link)
    style = (pages_as_html.FOLDER / "report.css").read_text()
    script = (pages_as_html.FOLDER / "report.js").read_text()
    assert "@import" not in style and not re.search(r"url\((?!#)", style)
    assert not re.search(r"fetch\(|XMLHttpRequest|WebSocket|import\(|innerHTML|eval\(", script)
    assert [link for link in re.findall(r"https?://\S+", script) if not link.startswith("http://www.w3.org/2000/svg")] == []


def test_its_policy_allows_its_own_script_and_style_alone(text: str) -> None:
    parsed = Parsed(text)
    (policy,) = [a["content"] for tag, a in parsed.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and "default-src 'none'" in policy and "unsafe" not in policy
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(parsed.texts[tag][-1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_ids_are_unique_links_lead_to_them_and_inputs_have_labels(text: str) -> None:
    elements = Parsed(text).elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert all(a["href"][1:] in ids for tag, a in elements if tag == "a" and a.get("href"))  # type: ignore[index]
    assert all(name in ids for _, a in elements for name in (a.get("aria-labelledby") or "").split())
    assert re.search(r"<label>[^<]*<select id=\"theme\">", text) and ("html", {"lang": "en"}) in elements


def test_names_and_messages_stay_text(text: str) -> None:
    parsed = Parsed(text)
    assert "img" not in {tag for tag, _ in parsed.elements}
    data = json.loads(parsed.texts["script"][0])
    assert HOSTILE in data["names"] and data["panels"][0][0] == HOSTILE
    assert data["panels"][0][7][0][3][1][12] == HOSTILE  # the message of the candidate that crashed
    assert HOSTILE in "".join(parsed.texts["td"])


def test_the_data_say_what_the_tables_say(text: str) -> None:
    made = report_of(record("fast", 1e-5, terms={"work.bytes": 1e5}), record("slow", 2e-5, registers=40))
    data = json.loads(Parsed(page(made)).texts["script"][0])
    (panel,) = data["panels"]
    ((sizes, chosen, certainty, entries, rivals, work),) = panel[7]
    assert work == [None, 1e5] and panel[9] == [None, 1e10]
    assert (sizes, chosen, data["certainties"][certainty], rivals) == ([64, 512], 0, "clear", [])
    who, us, width, times, outcome, predicted, error, compile_seconds, registers = entries[1]
    assert data["names"][data["who"][who][0]] == "slow" and (us, times, data["outcomes"][outcome]) == (20.0, 1, "ok")
    assert (predicted, error, compile_seconds, registers) == (20.0, 1e-7, 0.5, 40) and width == 0
    assert data["why"] == "polytile why {kernel} {sizes} --store store.sqlite3"
    assert data["regimes"]["64"] == "46..64, 16 divides it"


def test_the_script_is_small() -> None:
    assert (pages_as_html.FOLDER / "report.js").stat().st_size <= 40_000


def test_20_000_measurements_fit_in_2_MB() -> None:
    sizes = [(("M", m), ("N", n)) for m in range(1, 51) for n in range(64, 114)]
    rows = [record(f"tile {i}x4 k1024 m96 t2", 1.2345e-5 * (8 + i), size, spread=0.02) for size in sizes for i in range(8)]
    assert len(rows) == 20_000 and len(page(report_of(*rows)).encode()) <= 2_000_000
