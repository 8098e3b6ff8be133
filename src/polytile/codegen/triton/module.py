"""Turns a source text into a Triton function without a file."""

from __future__ import annotations

import linecache
from typing import Any

from polytile.problem import digest


def load(source: str) -> dict[str, Any]:
    """The names that `source` defines. Triton reads a function's text through `inspect`, which consults `linecache`."""
    filename = f"<polytile {digest(source)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": "polytile_generated", "__file__": filename}
    exec(compile(source, filename, "exec"), namespace)
    return namespace
