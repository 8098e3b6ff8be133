"""Puts text that a program printed between two markers of a document, README.md unless another is named:

    python scripts/update_readme.py demo.txt --document docs/demo.md

The text of FILE (standard input for "-") replaces what stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def replaced(document: str, name: str, text: str) -> str:
    """`document` with `text` between its markers; raises ValueError unless there is exactly one pair of them."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
        raise ValueError(f"the document needs one line {begin!r} and, after it, one line {end!r}.")
    head, rest = document.split(begin)
    return f"{head}{begin}\n\n{text.strip()}\n\n{end}{rest.split(end)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", help='the text to put in; "-" reads standard input')
    parser.add_argument("--document", type=Path, default=ROOT / "README.md")
    parser.add_argument("--name", default="demo", help="name of the markers (default: demo)")
    arguments = parser.parse_args()
    text = sys.stdin.read() if arguments.file == "-" else Path(arguments.file).read_text(encoding="utf-8")
    text = ESCAPE.sub("", text)
    if not text.strip():
        raise SystemExit(f"{arguments.file} is empty; the document stays as it is.")
    try:
        changed = replaced(arguments.document.read_text(encoding="utf-8"), arguments.name, text)
    except ValueError as trouble:
        raise SystemExit(f"{arguments.document}: {trouble}") from None
    descriptor, temporary = tempfile.mkstemp(dir=arguments.document.parent, prefix=".readme-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(changed)
    os.chmod(temporary, 0o644)
    os.replace(temporary, arguments.document)


if __name__ == "__main__":
    main()
