"""Files that people name: plans and exports."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, fill: Callable[[Path], object]) -> None:
    """Makes the file `path` that which `fill` writes at the path it is given, whole or not at all. Raises OSError, also where
    something other than a file is at `path`, which the rename would replace."""
    check(path)
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        fill(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Makes `text` the content of the file `path`, as `write_whole` does."""
    write_whole(path, lambda temporary: temporary.write_text(text))


def check(path: Path) -> None:
    """Raises OSError where something other than a file is at `path`: a directory, a device, a pipe."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it exists and is not a file")
