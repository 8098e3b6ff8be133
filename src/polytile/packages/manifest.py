"""A package's manifest: its description, as JSON. Reading it loads no code of the package and does not import torch."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from polytile.errors import PackageError
from polytile.packages import archive

FORMAT = 2
"""Version of the manifest and of the names of files."""


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a package. Raises PackageError where there is none, or one of another format."""
    try:
        manifest: dict[str, Any] = json.loads(archive.read(path, archive.MANIFEST))
        form = manifest["format"]
    except FileNotFoundError:
        raise PackageError(f"there is no package {path}.") from None
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise PackageError(f"{path} is no package, or only a part of one ({type(error).__name__}: {error}).") from None
    if form != FORMAT:
        raise PackageError(
            f"the package {path} has format {form}, and this polytile reads format {FORMAT}. Write it again with this version, "
            f"or load it with polytile {manifest.get('polytile')}."
        )
    return manifest


def is_package(path: Path) -> bool:
    """Whether this is a file or a folder that may be a package: one that holds a manifest, damaged or not."""
    return (path / archive.MANIFEST).is_file() or (path.is_file() and zipfile.is_zipfile(path))
