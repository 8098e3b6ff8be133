"""A package's files: an archive (zip) that stores them as they are, or a folder. Both are written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from polytile.files import write_whole

MANIFEST = "manifest.json"
PROGRAM = "program.so"
RUNTIME = "runtime.so"
WEIGHTS = "weights.safetensors"
APART = ".safetensors"
"""The suffix of a file of weights beside a package."""

ALIGNMENT = 64
"""Alignment in bytes of each file in an archive, so that weights can be used in place."""

PADDING = 0xD935
"""The id of an extra field that has nothing but padding."""

Chunks = Callable[[], Iterable[bytes | memoryview]]


@dataclass(frozen=True)
class Content:
    """One file: its size in bytes, and what gives its content, once or more often."""

    size: int
    chunks: Chunks

    @staticmethod
    def of(data: bytes) -> Content:
        return Content(len(data), lambda: (data,))

    def digest(self) -> str:
        """SHA-256 in hexadecimal digits."""
        sha = hashlib.sha256()
        for chunk in self.chunks():
            sha.update(chunk)
        return sha.hexdigest()


def write_file(path: Path, content: Content) -> None:
    """Makes `content` that of the file `path`."""

    def fill(temporary: Path) -> None:
        with temporary.open("wb") as file:
            for chunk in content.chunks():
                file.write(chunk)

    write_whole(path, fill)


def write_archive(path: Path, files: Mapping[str, Content]) -> None:
    """Makes an archive of the files, in their order."""

    def fill(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            for name, content in files.items():
                info = zipfile.ZipInfo(name)  # the date is always the same: equal programs make equal packages
                wide = content.size >= zipfile.ZIP64_LIMIT
                info.extra = _padding(archive.fp.tell(), name, wide)  # type: ignore[union-attr]
                with archive.open(info, "w", force_zip64=wide) as file:
                    for chunk in content.chunks():
                        file.write(chunk)

    write_whole(path, fill)


def _padding(begin: int, name: str, wide: bool) -> bytes:
    """The extra field by which the content of a file whose header is at `begin` has its ALIGNMENT."""
    header = 30 + len(name.encode()) + (20 if wide else 0) + 4
    length = -(begin + header) % ALIGNMENT
    return struct.pack("<HH", PADDING, length) + b"\0" * length


def write_folder(path: Path, files: Mapping[str, Content]) -> None:
    """Writes the files to a folder, replacing an existing folder of a package. Raises FileExistsError if there is a
    folder of another kind."""
    if path.exists() and not (path / MANIFEST).is_file():
        raise FileExistsError(f"{path} exists and is no package")
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        for name, content in files.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            write_file(temporary / name, content)
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def chunks_of(path: Path, name: str) -> Iterator[bytes]:
    """The content of a file of a package. Raises OSError, KeyError or zipfile.BadZipFile."""
    size = 1 << 20
    if path.is_dir():
        with (path / name).open("rb") as file:
            while chunk := file.read(size):
                yield chunk
        return
    with zipfile.ZipFile(path) as archive, archive.open(name) as member:
        while chunk := member.read(size):
            yield chunk


def read(path: Path, name: str) -> bytes:
    """The same as a whole."""
    return b"".join(chunks_of(path, name))
