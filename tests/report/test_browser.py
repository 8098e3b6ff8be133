"""A report in a real browser: Debian's `chromium`, driven by Playwright, which downloads none of its own."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polytile.problem import Outcome
from polytile.report.html import call_page, package_page, page
from tests.report import test_call, test_packaged
from tests.report.helpers import record, report_of

CHROMIUM = shutil.which("chromium")
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: pip install polytile[browser]")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no `chromium` on the path: apt install chromium")

CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => { for (; node; node = node.parentElement) { const own = rgba(getComputedStyle(node).backgroundColor);
    if (own[3]) return own; } return [255, 255, 255]; };
  const bad = [];
  const check = (node, ink, paper) => { const [a, b] = [light(ink), light(paper)].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) bad.push([node.tagName, node.textContent.slice(0, 40), (a + 0.05) / (b + 0.05)]); };
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !node.getClientRects().length || ['SCRIPT', 'OPTION', 'title', 'NOSCRIPT'].includes(node.tagName)) continue;
    const style = getComputedStyle(node);
    if (!(node instanceof SVGElement)) check(node, rgba(style.color), ground(node));
    else { const shape = node.parentElement.querySelector('rect[class^=c]');
      const paper = shape ? rgba(getComputedStyle(shape).fill) : ground((node.ownerSVGElement || node).parentElement);
      check(node, rgba(style.fill), paper); }
  }
  return bad;
}"""
"""Every visible text whose contrast with what lies behind it is under 4.5, which WCAG AA asks for."""


class Page:
    """A page of a browser, with what it has said on its console, and what it has asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report that compares two stores and has every kind of cell, with ten winners."""
    rows = []
    for i, m in enumerate((1, 7, 64, 300)):
        for j, n in enumerate((64, 512, 4096)):
            sizes = (("M", m), ("N", n), ("K", 64))
            work = {"work.batch": 1, "work.M": m, "work.N": n, "work.K": 64, "work.itemsize": 4}
            rows += [record(f"tile {(i * 3 + j) % 10}", 1e-5 * (1 + i), sizes, terms=work, predicted=1e-5)]
            rows += [record("tile 0", 2e-5 * (1 + i), sizes, terms=work), record("aten", 4e-5, sizes, origin="library")]
    rows += [record("tile 1", 3e-5, (("M", 7), ("N", 64), ("K", 128))), record("a", 1e-5, kernel="b" * 16)]
    rows += [record("b", 1.01e-5, kernel="b" * 16)]
    rows += [record("gone", outcome=Outcome.CRASHED, detail="out of luck", kernel="c" * 16)]
    before = [record("tile 0", 2e-5, (("M", 1), ("N", 64), ("K", 64)))]
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(report_of(*rows, before=before)))
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Page]:
    one = Page(browser.new_page())
    one.page.goto(file.as_uri())
    yield one
    assert one.said == [] and one.asked == [file.as_uri()]
    one.page.close()


def test_a_sizes_winner_grounds_and_source_are_two_clicks_away(opened: Page) -> None:
    page = opened.page
    page.get_by_role("button", name="loop_228d962c").first.click()
    page.get_by_role("button", name="M=7 N=512 K=64: tile 4").click()
    sync_api.expect(page.locator("#cell")).to_be_focused()
    grounds = page.locator("#grounds").inner_text()
    assert "tile 4 runs: 20.0 µs" in grounds and "source cpp" in grounds and "clear" in grounds
    assert "[object" not in page.locator("main").inner_text()
    assert "polytile why 228d962c0c6a657c M=7 N=512 K=64 --store store.sqlite3" in page.locator("#cell").inner_text()


def test_the_winner_grounds_and_source_of_any_size_are_three_clicks_away(opened: Page) -> None:
    page = opened.page
    for k, m, n, winner in [(64, 1, 64, 0), (64, 300, 4096, 1), (128, 7, 64, 1)]:
        page.get_by_role("button", name="loop_228d962c").first.click()  # one
        listed = page.get_by_label("Map at")
        if listed.input_value() != f"K={k}":
            listed.select_option(f"K={k}")  # two
        page.get_by_role("button", name=f"M={m} N={n} K={k}: tile {winner}").click()  # three
        sync_api.expect(page.locator("#cell")).to_contain_text(f"polytile why 228d962c0c6a657c M={m} N={n} K={k}")
        told = page.locator("#cell").inner_text()
        assert f"tile {winner} runs" in told and "source cpp" in told


def test_all_of_it_goes_by_keyboard(opened: Page) -> None:
    page = opened.page
    page.locator("#kernels-view input").focus()
    page.keyboard.type("228d")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "loop_228d962c":
            break
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#kernel")).to_be_focused()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('cell')"):
            break
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("Enter")
    sync_api.expect(page.locator("#cell")).to_be_focused()
    assert label.partition(":")[0] in page.locator("#cell h3").inner_text()


def test_predictions_and_rates_lead_to_their_sizes(opened: Page) -> None:
    page = opened.page
    page.get_by_role("button", name="loop_228d962c", exact=True).first.click()  # no size is open yet
    sync_api.expect(page.locator("#kernel")).to_be_focused()
    foreseen = page.get_by_role("region", name="Predictions by source")
    assert foreseen.locator("tbody tr").count() == 2 and "library" in foreseen.inner_text()
    foreseen.locator("tbody button").first.click()
    sync_api.expect(page.locator("#grounds")).to_contain_text("runs")
    rates = page.get_by_role("region", name="Rates", exact=True)
    assert rates.locator("tbody tr").count() == 12 and "100 %" in rates.inner_text()
    rates.get_by_role("button", name="M=300 N=512 K=64").click()
    sync_api.expect(page.locator("#cell h3")).to_contain_text("M=300 N=512 K=64")
    assert page.locator("circle.dot title").count() == 12  # the picture's
    assert "NaN" not in page.locator("#kernel-view").inner_html()


def test_the_time_line_has_a_bar_for_each_span_and_leads_to_sizes_that_are_alone(browser: Any, tmp_path: Path) -> None:
    records = [dataclasses.replace(record(sizes=(("M", m), ("N", 64))), taken_at=1.7e9 + 3600 * m) for m in (1, 7)]
    path = tmp_path / "times.html"
    path.write_text(page(report_of(*records)))
    opened = Page(browser.new_page())
    opened.page.goto(path.as_uri())
    bars = opened.page.locator("#times-view svg[role=img] rect.bar")
    assert bars.count() == 2
    assert "loop_228d962c M=7 N=64, 1 measurement" in bars.nth(1).locator("xpath=../*[1]").evaluate("node => node.textContent")
    opened.page.get_by_role("region", name="Spans").get_by_role("button", name="loop_228d962c M=7 N=64").click()
    sync_api.expect(opened.page.locator("#cell h3")).to_contain_text("M=7 N=64")
    assert opened.page.evaluate(CONTRAST) == [] and opened.said == []
    opened.page.close()


def test_the_filter_leaves_what_has_all_words(opened: Page) -> None:
    rows = opened.page.locator("#kernels-view tbody tr")
    assert rows.count() == 3
    opened.page.get_by_label("Filter kernels").fill("LOOP bbbb")
    assert rows.count() == 1 and "1 of 3" in opened.page.locator("#kernels-view output").inner_text()


def test_headings_sort(opened: Page) -> None:
    page = opened.page
    page.locator("#kernels-view").get_by_role("button", name="sizes", exact=True).click()
    assert page.locator("#kernels-view tbody tr").first.inner_text().startswith("loop_228d962c")
    assert page.locator("#kernels-view th[aria-sort=descending]").count() == 1


def test_an_address_opens_a_cell_of_another_slice_of_the_map(opened: Page) -> None:
    page = opened.page
    page.get_by_role("button", name="loop_228d962c").first.click()
    page.get_by_label("Filter sizes").fill("K=128")
    page.locator("#kernel-view tbody").get_by_role("button", name="K=128").first.click()
    sync_api.expect(page.get_by_label("Map at")).to_have_value("K=128")
    sync_api.expect(page.locator(".cell.open")).to_have_count(1)


def test_what_did_not_run_says_so(opened: Page) -> None:
    opened.page.get_by_role("button", name="loop_cccccccc", exact=True).click()
    assert "No candidate has a time" in opened.page.locator("#grounds").inner_text()
    assert "out of luck" in opened.page.locator("#cell").inner_text()


def test_changes_lead_to_their_cells(opened: Page) -> None:
    opened.page.locator("#changes-view tbody button").first.click()
    assert "M=1 N=64 K=64" in opened.page.locator("#cell h3").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_as_wcag_aa_asks(opened: Page, scheme: str) -> None:
    opened.page.get_by_label("Colours").select_option(scheme)
    opened.page.get_by_role("button", name="loop_228d962c").first.click()
    opened.page.get_by_role("button", name="M=7 N=512 K=64: tile 4").click()
    sync_api.expect(opened.page.locator("#cell")).to_be_focused()
    assert opened.page.evaluate(CONTRAST) == []


def test_it_prints_without_what_only_a_screen_needs(opened: Page) -> None:
    opened.page.emulate_media(media="print")
    assert not opened.page.locator("nav").is_visible() and not opened.page.locator("input").first.is_visible()
    assert opened.page.locator("#summary table").first.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_packages_page_is_filtered_drawn_and_readable(browser: Any, tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "package.html"
    path.write_text(package_page(test_packaged.report_of(*test_packaged.DECISIONS, before=test_packaged.DECISIONS[:2])))
    opened = Page(browser.new_page())
    opened.page.goto(path.as_uri())
    assert opened.page.locator("#changes-view tbody tr").count() == 1
    assert opened.page.locator("#choices-view svg[role=img] g").count() == 3
    hatched = opened.page.locator("#choices-view svg[role=img] .hatch")
    assert hatched.count() == 1 and "#hatch" in hatched.evaluate("node => getComputedStyle(node).fill")
    opened.page.get_by_label("Filter choices").fill("exact")
    assert opened.page.locator("#choices-view tbody tr").count() == 1
    opened.page.get_by_label("Colours").select_option(scheme)
    assert opened.page.evaluate(CONTRAST) == []
    assert opened.said == [] and opened.asked == [path.as_uri()]
    opened.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_packages_memory_is_drawn_over_its_calls_at_each_size(browser: Any, tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "package.html"
    path.write_text(package_page(test_packaged.with_memory()))
    opened = Page(browser.new_page())
    opened.page.goto(path.as_uri())
    host = opened.page.locator("#memory-view")
    assert host.locator("rect.none").count() == 3
    opened.page.get_by_label("Memory at").select_option("s0=400")
    assert host.locator("rect.none").count() == 1 and host.locator("rect.edge").count() == 2
    told = host.locator("g title").nth(2).evaluate("node => node.textContent")
    assert told == "buf1: 1 920 bytes, at byte 1 280 of the arena, from call 2 (loop_89) to call 2 (loop_89)"
    numbers = "node => ['x', 'y', 'height'].map((name) => Number(node.getAttribute(name)))"
    first, second = (host.locator("rect.edge").nth(i).evaluate(numbers) for i in (0, 1))
    assert second[0] > first[0] and second[1] + second[2] == pytest.approx(first[1], abs=0.2)  # later, and right above
    opened.page.get_by_label("Colours").select_option(scheme)
    assert opened.page.evaluate(CONTRAST) == [] and opened.said == [] and opened.asked == [path.as_uri()]
    opened.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_calls_time_line_has_a_bar_for_each_step_and_lists_them(browser: Any, tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "call.html"
    path.write_text(call_page(test_call.call_of()))
    opened = Page(browser.new_page())
    opened.page.goto(path.as_uri())
    bars = opened.page.locator("#call-0 svg[role=img] g")
    assert bars.count() == len(test_call.STEPS)
    first, launched = (bars.nth(i).locator("rect").evaluate("node => getComputedStyle(node).fill") for i in (1, 3))
    assert first == launched and "launched by mm_01" in bars.nth(3).locator("title").evaluate("node => node.textContent")
    opened.page.get_by_label("Filter steps, kernel by kernel").fill("radix")
    assert opened.page.locator("#call-0 tbody tr").count() == 2 and opened.page.locator("#call-1 tbody tr").count() == 2
    opened.page.locator("#call-0").get_by_role("button", name="µs", exact=True).click()
    assert opened.page.locator("#call-0 tbody tr").first.inner_text().split("\t")[3] == "15"
    opened.page.get_by_label("Colours").select_option(scheme)
    assert opened.page.evaluate(CONTRAST) == [] and opened.said == [] and opened.asked == [path.as_uri()]
    opened.page.close()


def test_a_page_that_is_written_again_loads_itself_but_not_under_a_filter(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "live.html"
    path.write_text(page(report_of(record("first")), every=0.2))
    opened = browser.new_page()
    opened.goto(f"{path.as_uri()}#kernel/0")
    opened.get_by_label("Colours").select_option("dark")
    path.write_text(page(report_of(record("second")), every=0.2))
    sync_api.expect(opened.locator("#kernel-view")).to_contain_text("second")
    sync_api.expect(opened.get_by_label("Colours")).to_have_value("dark")
    words = opened.get_by_label("Filter kernels")
    while words.input_value() != "loop":  # the page may load itself again before it has a filter
        words.fill("loop")
        opened.wait_for_timeout(250)
    path.write_text(page(report_of(record("third")), every=0.2))
    opened.wait_for_timeout(700)
    assert "second" in opened.locator("#kernel-view").inner_text()
    words.fill("")
    sync_api.expect(opened.locator("#kernel-view")).to_contain_text("third")
    opened.close()
