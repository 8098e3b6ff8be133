"""A report on packages: what their manifests say, as tables and as a page."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from polytile.packages.manifest import FORMAT
from polytile.report.html import package_page
from polytile.report.packaged import MEASURED, Package, PackageReport, changes, strips, tables
from tests.cli.helpers import run
from tests.report.test_html import HOSTILE, Parsed

DECISIONS = [
    ["M=12..16%16 N=64", "tile 8x2", "prior: predicted 5.3 µs"],
    ["M=2 N=64", "dot 6x4", "exact: measured before, at these sizes"],
    ["M=9..11 N=64", "tile 8x2", "nearby: measured before, nearby at M=10, N=64"],
]


def manifest(*decisions: list[str], kernel: str = "mm_0123abcd") -> dict[str, Any]:
    forms = sorted({form for _, form, _ in decisions})
    return {
        "format": FORMAT, "polytile": "0.1.0", "torch": "2.13.0", "device": "cpu", "machine": "x86_64", "features": ["avx2"],
        "compiler": "g++ 12", "weights_apart": False, "sizes": {"s0": [2, 1 << 62], "s1": [2, 300]}, "inputs":
        [{"name": "x", "dtype": "float32", "shape": ["s0", "64"]}, {"name": "scale", "constant": 2.0}],
        "kernels": [{"name": kernel, "operators": ["aten.mm.default"], "forms": forms, "decisions": list(decisions)}],
        "files": {name: {"bytes": size, "sha256": "ab" * 32} for name, size in {"program.so": 1234567, "x": 8}.items()},
    }  # fmt: skip


def report_of(*decisions: list[str], before: list[list[str]] | None = None) -> PackageReport:
    earlier = Package("old.ptp", manifest(*before)) if before is not None else None
    return PackageReport(Package("new.ptp", manifest(*decisions)), earlier, "polytile report new.ptp")


def file_of(path: Path, *decisions: list[str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest(*decisions)))
    return path


def test_ranges_of_sizes_are_in_order_and_say_what_runs_and_why() -> None:
    made = dict(tables(report_of(*DECISIONS)))
    assert [row[1:3] for row in made["choices"].rows] == [
        ("M=2 N=64", "dot 6x4"), ("M=9..11 N=64", "tile 8x2"), ("M=12..16%16 N=64", "tile 8x2"),
    ]  # fmt: skip
    assert made["kernels"].rows == (("mm_0123abcd", "aten.mm.default", "dot 6x4; tile 8x2", 3, 2),)
    found = dict(made["summary"].rows)
    assert found["sizes that vary"] == "s0 ≥ 2, s1 = 2..300" and found["files"] == "2, 1.23 MB"
    assert found["choices"] == "3: 1 exact, 1 nearby, 1 prior"
    assert [row[1] for row in made["inputs"].rows] == ["float32", "the constant 2.0"]


MEMORY = {
    "calls": ["mm_0123abcd", "loop_89"],
    "memories": [["x", 0, 1], ["buf0", 0, 2], ["buf1", 1, 2]],
    "at": [
        {"sizes": {"s0": 16}, "bytes": [64, 128, 192], "offsets": [None, None, None], "arena": 0},
        {"sizes": {"s0": 400}, "bytes": [640, 1280, 1920], "offsets": [None, 0, 1280], "arena": 3200},
    ],
}


def with_memory() -> PackageReport:
    return PackageReport(Package("new.ptp", {**manifest(*DECISIONS), "memory": MEMORY}), None, "polytile report new.ptp")


def test_memory_is_told_at_each_size_and_where_each_part_lies() -> None:
    made = dict(tables(with_memory()))
    assert made["memory"].rows == (("s0=16", 0, 0, 0, 3, 384), ("s0=400", 3200, 2, 3200, 1, 640))
    assert made["memories"].rows[0] == ("s0=16", "x", 64, None, "1: mm_0123abcd", "1: mm_0123abcd")
    assert made["memories"].rows[5] == ("s0=400", "buf1", 1920, 1280, "2: loop_89", "2: loop_89")


def test_packages_that_do_not_tell_their_memory_have_no_view_of_it() -> None:
    plain = report_of(*DECISIONS)
    assert dict(tables(plain))["memory"].rows == () and 'id="memory"' not in package_page(plain)
    assert 'id="memory"' in package_page(with_memory())


def test_a_strip_has_each_range_with_its_form_and_whether_it_was_measured() -> None:
    ((name, forms, cells),) = strips(Package("p", manifest(*DECISIONS)))
    assert name == "mm_0123abcd" and forms == ["tile 8x2", "dot 6x4"]
    assert [(form, measured) for _, form, measured in cells] == [(1, True), (0, True), (0, False)]
    assert set(MEASURED) >= {"exact", "nearby"}


def test_of_two_packages_only_what_differs_is_listed_other_forms_first() -> None:
    before = [["M=12..16%16 N=64", "tile 8x2", "exact: measured"], ["M=2 N=64", "tile 8x2", "prior: x"]]
    before += [["M=99 N=64", "dot 6x4", "prior: x"]]
    changed = changes(Package("a", manifest(*before)), Package("b", manifest(*DECISIONS)))
    assert [(row[1], row[2]) for row in changed.rows] == [
        ("M=2 N=64", "form"), ("M=9..11 N=64", "new"), ("M=99 N=64", "gone"), ("M=12..16%16 N=64", "grounds"),
    ]  # fmt: skip
    assert not changes(Package("a", manifest(*DECISIONS)), Package("b", manifest(*DECISIONS))).rows


def test_the_page_says_what_the_tables_say_and_nothing_is_outside_of_it() -> None:
    report = report_of(*DECISIONS, [HOSTILE, HOSTILE, HOSTILE], before=DECISIONS)
    parsed = Parsed(package_page(report))
    data = json.loads(parsed.texts["script"][0])
    lists = {name: rows for name, _, _, rows in data["lists"]}
    made = dict(tables(report))
    assert lists == {name: made[name].cells() for name in ("changes", "choices")}
    assert [tag for tag, _ in parsed.elements].count("img") == 0
    cells = [text for tag in ("td", "th") for text in parsed.texts[tag]]
    assert all(cell in cells for name in ("summary", "kernels", "inputs", "files") for row in made[name].cells() for cell in row)


def test_the_command_writes_a_page_tables_and_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    old, new = file_of(tmp_path / "old.ptp", *DECISIONS[:2]), file_of(tmp_path / "new.ptp", *DECISIONS)
    assert "new.ptp" in (run("report", new, "-o", "page.html"), Path("page.html").read_text())[1]
    assert "| M=9..11 N=64 | new" in run("report", old, new, "--text").output.replace("mm_0123abcd | ", "")
    assert run("report", new, "--csv", "-o", "tables").exit_code == 0
    assert (tmp_path / "tables" / "choices.csv").read_text().splitlines()[1] == (
        'mm_0123abcd,M=2 N=64,dot 6x4,"exact: measured before, at these sizes"'
    )


def test_a_package_is_not_mixed_with_a_store_nor_replaced(tmp_path: Path) -> None:
    package, store = file_of(tmp_path / "new.ptp", *DECISIONS), tmp_path / "store.sqlite3"
    store.write_text("")
    for words, message in (
        ((package, store), "is a package, and the other is none"),
        ((package, package, package), "compares two, and 3 were named"),
        ((package, "-o", package), "is what the report is on"),
        ((package, "--kernel", "mm"), "are for stores"),
    ):
        result = run("report", *words)
        assert result.exit_code != 0 and message in " ".join(result.output.replace("│", " ").split())
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "")
    assert "is no package" in run("report", tmp_path / "other.zip", "--text").output
