"""A report as one self-contained HTML file: no network, no library, no server.

The first page is rendered here from the same tables as `--text`; `report.js` draws the rest from the JSON inside the file. The
file's content security policy forbids the browser to load anything, and to run any other script.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from polytile.report import call, packaged, pages
from polytile.report.contents import Report
from polytile.report.lanes import BAR, HEADS, Chart
from polytile.report.payload import NOTHING, Payload, as_json
from polytile.version import __version__

FOLDER = Path(__file__).parent


def page(report: Report, every: float = 0.0) -> str:
    """The HTML of a report on a store. An open page reloads every `every` seconds, unless that is 0."""
    return _file(
        summary=pages.summary(report),
        tables=[pages.aims(report), pages.devices(report), pages.sources(report), pages.worst(report)],
        sections=[*([("changes", "What changed")] if report.comparison is not None else []), ("kernels", "Kernels")],
        later=[("times", "When it was measured")],
        meanings=pages.MEANINGS,
        data=as_json({**Payload(report).values, "every": every}),
    )


def package_page(report: packaged.PackageReport) -> str:
    """The report on a package, or on what changed between two, as one HTML file."""
    lists = [("choices", packaged.choices(report.package))]
    if report.before is not None:
        lists.insert(0, ("changes", packaged.changes(report.before, report.package)))
    drawn = {
        "lists": [[name, table.title, [column.heading for column in table.columns], table.cells()] for name, table in lists],
        "strips": packaged.strips(report.package),
        "memory": report.package.manifest.get("memory"),
    }
    return _file(
        summary=packaged.summary(report),
        tables=[packaged.kernels(report.package), packaged.inputs(report.package), packaged.files(report.package)],
        sections=[(name, table.title) for name, table in lists],
        later=[("memory", "Memory of a call")] if packaged.memory(report.package).rows else [],
        meanings=packaged.MEANINGS,
        data=as_json({**NOTHING, **drawn}),
    )


def call_page(report: call.CallReport) -> str:
    """The report on one call, as one HTML file."""
    charts = [(f"call-{number}", Chart(view)) for number, view in enumerate(report.views)]
    sections = [(name, f"A call, {chart.view.name}") for name, chart in charts]
    lists = [[name, f"Steps, {chart.view.name}", HEADS, chart.rows()] for name, chart in charts]
    return _file(
        summary=call.summary(report),
        tables=[call.lines_table("What runs", report.lines)],
        sections=sections,
        later=[],
        drawings={name: _drawing(chart) for name, chart in charts},
        meanings=call.MEANINGS,
        data=as_json({**NOTHING, "lists": lists, "strips": []}),
    )


def _drawing(chart: Chart) -> dict[str, Any]:
    parts = {"lanes": chart.lanes, "ticks": list(chart.ticks()), "bars": list(chart.bars()), "groups": chart.groups()}
    return {"label": chart.label, "width": chart.width, "height": chart.height, "bottom": chart.bottom, "bar": BAR, **parts}


def _file(**parts: Any) -> str:
    script, style = (_asset(name) for name in ("report.js", "report.css"))
    environment = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    own = {"script": script, "style": style, "script_hash": _digest(script), "style_hash": _digest(style)}
    return environment.get_template("report.html").render(**{"drawings": {}, **parts}, **own, version=__version__)


def _asset(name: str) -> str:
    """A file that is inlined into an element. It is inserted verbatim, so it must not contain the element's end tag."""
    return (FOLDER / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """The source expression of an element's text in a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
