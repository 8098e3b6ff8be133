"""`python -m scripts.report_example [store] [kept] [changes] [campaign] [package] [call]`: makes the pictures of docs/report.md,
all of them or some.

Two functions are measured on this processor, for the changes twice, a model by a campaign, and one is packaged. Stores are
temporary. Pictures need Playwright (`pip install polytile[browser]`) and the system's `chromium`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
ROWS, COLUMNS = (1, 7, 64, 300, 1024), (64, 512, 2048, 4096, 10000)

FUNCTIONS = f'''
import torch

def softmax(x):
    return torch.softmax(x, -1)

def gelu_linear(x, weight):
    return torch.nn.functional.gelu(x @ weight)

def layers():
    torch.manual_seed(0)
    block = torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64), torch.nn.LayerNorm(64)
    model = torch.nn.Sequential(*block, torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 32)).eval()
    return model, [(torch.randn(rows, 64),) for rows in (16, 2, 7, 40, 100, 400, 1500)]

def rows():
    return softmax, [(torch.randn(m, n),) for m in {ROWS} for n in {COLUMNS}]

def products():
    return gelu_linear, [(torch.randn(m, 512), torch.randn(512, n)) for m in (1, 4, 16, 64, 256) for n in (256, 1024)]
'''


def polytile(folder: Path, *words: object, **variables: str) -> None:
    """A command of polytile on the store in `folder`. Raises CalledProcessError where it fails."""
    environment = {**os.environ, "POLYTILE_CACHE_DIR": str(folder), **variables}
    subprocess.run([sys.executable, "-m", "polytile", *map(str, words)], check=True, env=environment, cwd=folder)


def store_report(folder: Path) -> Path:
    """A report on a store in `folder`, in which each candidate was measured at each size."""
    for function in ("rows", "products"):
        polytile(folder, "tune", f"kernels.py:{function}", "--quick", POLYTILE_TUNE="all")
    polytile(folder, "report", "store.sqlite3", "-o", "report.html")
    return folder / "report.html"


def changes_report(folder: Path) -> Path:
    """A report on what changed between two stores in `folder`: the same sizes, measured twice."""
    for name in ("monday", "tuesday"):
        polytile(folder, "tune", "kernels.py:rows", "--quick", POLYTILE_CACHE_DIR=str(folder / name))
    polytile(folder, "report", "monday", "tuesday", "-o", "changes.html")
    return folder / "changes.html"


CAMPAIGN = """
[campaign]
device = "cpu"

[[model]]
target = "kernels.py:layers"
sizes = {s0 = [2, 7, 16, 40, 100, 400, 1500]}
"""


def campaign_report(folder: Path) -> Path:
    """A report on a campaign of two workers in `folder`, which disturb each other on one processor."""
    (folder / "serving.toml").write_text(CAMPAIGN)
    polytile(folder, "campaign", "run", "serving.toml", "--count", 2)
    polytile(folder, "report", "serving", "-o", "campaign.html")
    return folder / "campaign.html"


def package_report(folder: Path) -> Path:
    """A report on a package in `folder`, some of whose choices were measured."""
    polytile(folder, "tune", "kernels.py:layers", "--quick")
    polytile(folder, "package", "kernels.py:layers", "-o", "model.ptp")
    polytile(folder, "report", "model.ptp", "-o", "package.html")
    return folder / "package.html"


def call_report(folder: Path) -> Path:
    """The kept report on a call."""
    return ROOT / "benchmarks" / "results" / "reports" / "call_cpu.html"


def kept_report(folder: Path) -> Path:
    """A report on the kept store of a GPU."""
    polytile(folder, "report", ROOT / "benchmarks" / "results" / "reports" / "kept_cuda.sqlite3", "-o", "kept.html")
    return folder / "kept.html"


def photograph_store(page: Any) -> None:
    """The summary, a kernel's map with a size opened, and its curves."""
    page.screenshot(path=IMAGES / "report-summary.png")
    page.locator("#kernels-view").get_by_role("button", name="sizes", exact=True).click()  # the most sizes first
    page.locator("#kernels-view tbody button").first.click()
    page.locator(".cell").nth(7).click()
    page.evaluate("document.getElementById('kernel').scrollIntoView()")
    page.set_viewport_size({"width": 1100, "height": 760})
    page.screenshot(path=IMAGES / "report-map.png")
    page.get_by_label("Colours").select_option("dark")
    page.get_by_role("heading", name="Slowdown over the fastest").evaluate("node => node.scrollIntoView()")
    page.screenshot(path=IMAGES / "report-slowdown.png")


def photograph_section(page: Any, name: str, file: str) -> None:
    """As much of the section of this name as fits."""
    page.set_viewport_size({"width": 1100, "height": 640})
    page.evaluate(f"document.getElementById('{name}').scrollIntoView()")
    page.screenshot(path=IMAGES / file)


def photograph_kept(page: Any) -> None:
    """How near predictions of a product came, and its roofline."""
    page.set_viewport_size({"width": 1100, "height": 900})
    page.locator("#kernels-view").get_by_role("button", name="sizes", exact=True).click()  # the most sizes first
    page.locator("#kernels-view tbody button").first.click()
    page.get_by_role("heading", name="Predicted over measured time").evaluate("node => node.scrollIntoView()")
    page.screenshot(path=IMAGES / "report-rates.png")


def photograph_changes(page: Any) -> None:
    photograph_section(page, "changes", "report-changes.png")


def photograph_campaign(page: Any) -> None:
    photograph_section(page, "times", "report-times.png")


def photograph_call(page: Any) -> None:
    photograph_section(page, "call-0", "report-call.png")


def photograph_package(page: Any) -> None:
    photograph_section(page, "choices", "report-package.png")
    photograph_section(page, "memory", "report-memory.png")


VIEWS = {
    "store": (store_report, photograph_store),
    "kept": (kept_report, photograph_kept),
    "changes": (changes_report, photograph_changes),
    "campaign": (campaign_report, photograph_campaign),
    "package": (package_report, photograph_package),
    "call": (call_report, photograph_call),
}


def main() -> None:
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    for name in sys.argv[1:] or VIEWS:
        make, photograph = VIEWS[name]
        with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
            (Path(folder) / "kernels.py").write_text(FUNCTIONS)
            report = make(Path(folder))
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
            page = browser.new_page(viewport={"width": 1100, "height": 560})
            page.goto(report.as_uri())
            photograph(page)
            browser.close()


if __name__ == "__main__":
    main()
