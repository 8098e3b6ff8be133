"""Names of the package that nothing uses: no module of it, no benchmark, no script and no example of the documents.

vulture finds them. It takes whatever stands in an `__all__` for used, as somebody outside may import it; what users import, the
documents show, so here `__all__` does not count. Tests do not count either: what only tests call is not there for anybody.
`python -m scripts.dead_code` prints one line for each; the status is 1 where there are any. [tool.vulture] of pyproject.toml has
the names that are used in ways that no text shows, and why.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from vulture import Vulture
from vulture.config import make_config

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "polytile"
CALLERS = ("src", "benchmarks", "scripts")
EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def texts() -> Iterator[tuple[Path, str]]:
    """Every file that counts, and the Python in it."""
    for folder in CALLERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, without_all(path.read_text())
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for example in EXAMPLE.findall(page.read_text()):
            yield page, example


def without_all(text: str) -> str:
    """The text with its `__all__` left out, lines staying where they are."""
    lines = text.split("\n")
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "\n".join(lines)


def unused() -> list[str]:
    """One line for each name, with its place."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        given = make_config([str(PACKAGE)], file)
    finder = Vulture(ignore_names=given["ignore_names"], ignore_decorators=given["ignore_decorators"])
    for path, text in texts():
        finder.scan(text, filename=path)
    found = [item for item in finder.get_unused_code(min_confidence=60) if PACKAGE in Path(item.filename).parents]
    return [f"{Path(item.filename).relative_to(ROOT)}:{item.first_lineno}: unused {item.typ} '{item.name}'" for item in found]


if __name__ == "__main__":
    lines = unused()
    print("\n".join(lines) or "Every name of the package is used.")
    sys.exit(1 if lines else 0)
