"""The version of polytile: part of plans, reports and the records of measurements."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

__version__ = "0.1.0"


@functools.cache
def source_digest() -> str:
    """Digest of polytile's own sources, word for word: of what is on disk, by what would make it anew."""
    package, sha = str(Path(__file__).parent), hashlib.sha256()
    for folder, inner, names in os.walk(package):
        inner.sort()
        for name in sorted(name for name in names if name.endswith((".py", ".c", ".h", ".json"))):
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                sha.update(path[len(package) :].encode() + b"\0" + file.read() + b"\0")
    return sha.hexdigest()[:24]
