"""Files that people name: plans and exports."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Makes `text` the content of the file `path`, whole or not at all. Raises OSError, also where something other than a file is
    at `path`, which the rename would replace."""
    check(path)
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def check(path: Path) -> None:
    """Raises OSError where something other than a file is at `path`: a directory, a device, a pipe."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it exists and is not a file")
