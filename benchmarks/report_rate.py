"""A report on 20 000 measurements: how long it takes to make, how big it is, and how soon a browser shows and filters it.

`python -m benchmarks.report_rate`. The browser is the system's `chromium`, driven by Playwright. Where one is missing, so are its
figures. `--show` measures nothing and prints the table of the results that are there, for docs/report.md:

    python -m benchmarks.report_rate --show | python scripts/update_readme.py - --document docs/report.md --name report_rate
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import record
from benchmarks.command import Command
from polytile.facts import Threads
from polytile.problem import Config, Measurement, Outcome, Problem
from polytile.report import Column, Table, show
from polytile.report.tables import ratio
from polytile.store import Store

KERNELS, SIZES, CANDIDATES, SAMPLES = 50, 50, 8, 15
TIMES = 5
"""How often each figure is taken; the median counts."""

FIRST_PAINT = """() => new Promise((done) => new PerformanceObserver((list, observer) => {
  const [paint] = list.getEntriesByName('first-contentful-paint');
  if (paint) { observer.disconnect(); done(paint.startTime); }
}).observe({type: 'paint', buffered: true}))"""
"""Milliseconds from the start of loading to the first text. The page forbids waiting by a function that is given as text."""

FILTER = """words => {
  const input = document.querySelector('#kernel-view input'), start = performance.now();
  input.value = words;
  input.dispatchEvent(new Event('input'));
  document.body.getBoundingClientRect();
  return performance.now() - start;
}"""
"""Milliseconds that filtering a list takes, the layout of what is left included."""


def measurements() -> list[Measurement]:
    """KERNELS × SIZES × CANDIDATES measurements with times that are drawn."""
    drawn = random.Random(0)
    made = []
    for kernel in range(KERNELS):
        for place in range(SIZES):
            sizes = (("M", 1 + place % 10), ("N", 64 * (1 + place // 10)))
            problem = Problem("mm", f"{kernel:016x}", sizes, ("float32",), (Threads(2),), "cpu-avx512-2t-drawn")
            for candidate in range(CANDIDATES):
                seconds = drawn.uniform(1e-6, 1e-3)
                samples = tuple(seconds * drawn.uniform(1, 1.02) for _ in range(SAMPLES))
                name = f"tile {candidate}x4 k1024 m96 n1024 u1 t2"
                config = Config.of(mr=candidate, nv=4, kc=1024, mc=96, threads=2)
                state = (("disturbed", 0.0), ("load", 1.5), ("mhz", 2596.1))
                made.append(Measurement(
                    problem, name, config, f"{kernel * 100 + candidate:016x}", Outcome.OK, samples, 1e-7, 0.5,
                    environment=(("torch", "2.13.0"),), origin="cpp", predicted=seconds, state=state,
                ))  # fmt: skip
    return made


def measure(folder: Path) -> dict[str, float]:
    """Every figure, by name."""
    store = Store(folder / "store.sqlite3")
    rows = measurements()
    store.append(*rows)
    store.close()
    page = folder / "report.html"
    taken = []
    for _ in range(TIMES):
        started = time.perf_counter()
        command = [sys.executable, "-m", "polytile", "report", str(folder), "-o", str(page)]
        subprocess.run(command, check=True, capture_output=True)
        taken.append(time.perf_counter() - started)
    found = {"measurements": float(len(rows)), "seconds": statistics.median(taken), "megabytes": page.stat().st_size / 1e6}
    return {**found, **browsed(page)}


def browsed(page: Path) -> dict[str, float]:
    """Milliseconds to the first paint and of a filter, in a browser; nothing where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {}
    chromium = shutil.which("chromium")
    if chromium is None:
        return {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        paints, filters = [], []
        for _ in range(TIMES):
            opened = browser.new_page()
            opened.goto(page.as_uri())
            paints.append(opened.evaluate(FIRST_PAINT))
            opened.evaluate("location.hash = '#kernel/3'")
            opened.wait_for_selector("#kernel-view input")
            filters.append(max(opened.evaluate(FILTER, words) for words in ("M=7", "", "n=64 tile", "nothing of it")))
            opened.close()
        browser.close()
    return {"first_paint_ms": statistics.median(paints), "filter_ms": statistics.median(filters)}


def table(found: dict[str, float], *notes: str) -> Table:
    figures = [
        ("made, s", found["seconds"], 2.0), ("size, MB", found["megabytes"], 2.0),
        ("first paint, ms", found.get("first_paint_ms"), 500.0), ("slowest filter, ms", found.get("filter_ms"), 50.0),
    ]  # fmt: skip
    title = f"A report on {found['measurements']:.0f} measurements"
    return Table.from_rows(title, ["figure", Column("found", ratio), Column("at most wanted", ratio)], figures, notes)


def main() -> None:
    parser = Command(__doc__, json=True)
    parser.add_argument("--show", action="store_true", help="measure nothing and print what that file has")
    arguments = parser.parsed()
    if arguments.show:
        content = json.loads((record.RESULTS / "report_rate.json").read_text())
        where = content["environment"]
        show(table(content["results"], f"{where['processor']}, {where['cores']} cores, {where['date'][:10]}."))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    show(table(found))
    if arguments.json:
        record.write("report_rate", found)


if __name__ == "__main__":
    main()
