"""`python -m scripts.report_example`: measures two functions on this processor, and makes the pictures of docs/report.md.

The store is a temporary one. Pictures need Playwright (`pip install polytile[browser]`) and the system's `chromium`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
ROWS, COLUMNS = (1, 7, 64, 300, 1024), (64, 512, 2048, 4096, 10000)

FUNCTIONS = f'''
import torch

def softmax(x):
    return torch.softmax(x, -1)

def gelu_linear(x, weight):
    return torch.nn.functional.gelu(x @ weight)

def rows():
    return softmax, [(torch.randn(m, n),) for m in {ROWS} for n in {COLUMNS}]

def products():
    return gelu_linear, [(torch.randn(m, 512), torch.randn(512, n)) for m in (1, 4, 16, 64, 256) for n in (256, 1024)]
'''



def polytile(folder: Path, *words: object, **variables: str) -> None:
    """A command of polytile on the store in `folder`. Raises CalledProcessError where it fails."""
    environment = {**os.environ, "POLYTILE_CACHE_DIR": str(folder), **variables}
    subprocess.run([sys.executable, "-m", "polytile", *map(str, words)], check=True, env=environment, cwd=folder)


def measured(folder: Path) -> Path:
    """A report on a store in `folder`, in which each candidate was measured at each size."""
    (folder / "kernels.py").write_text(FUNCTIONS)
    for function in ("rows", "products"):
        polytile(folder, "tune", f"kernels.py:{function}", "--quick", POLYTILE_TUNE="all")
    polytile(folder, "report", "store.sqlite3", "-o", "report.html")
    return folder / "report.html"


def photographed(report: Path) -> None:
    """Pictures of the summary, of a kernel's map with a size opened, and of its curves."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        page = browser.new_page(viewport={"width": 1100, "height": 560})
        page.goto(report.as_uri())
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
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        photographed(measured(Path(folder)))


if __name__ == "__main__":
    main()
