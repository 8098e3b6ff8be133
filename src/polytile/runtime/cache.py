"""The cache directory: where it is, how files get into it, and how a damaged file is kept from being used.

Every file that a program will trust (a shared object, a record of the toolchain) is written under a temporary name,
sealed with a checksum line, and renamed into place. A reader sees the whole file or none. A file whose seal does not
match its name and content is renamed to `*.bad` with a warning and counts as absent, so it is made again.

In a directory that every user may write to, files go to one of the user's own, which nobody else may write to. A directory that
cannot be used (no permission, read-only, full, somebody else's) costs one warning; from then on this process keeps its files in a
private temporary directory and still reads what a trusted first directory holds.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from polytile import locks, options
from polytile.errors import CacheError

log = logging.getLogger("polytile")
T = TypeVar("T")

STALE_SECONDS = 24 * 3600
"""Age at which a temporary file is taken for the leftover of a process that died."""

_SEAL = b"\npolytile-sha256 "
_SEAL_LENGTH = len(_SEAL) + 64 + 1


def seal(name: str, payload: bytes) -> bytes:
    """The line that ends the file `name` (relative to the cache) with the content `payload`.

    ELF loaders and text editors ignore it; a truncated file lacks it; a file moved to another name does not match it.
    """
    return _SEAL + hashlib.sha256(name.encode() + b"\0" + payload).hexdigest().encode() + b"\n"


def unseal(name: str, content: bytes) -> bytes | None:
    """The payload of a sealed file, or None if the file is truncated, altered or belongs to another name."""
    payload, line = content[:-_SEAL_LENGTH], content[-_SEAL_LENGTH:]
    return payload if line == seal(name, payload) else None


def write_atomically(path: Path, content: bytes, temporary: Path, durable: bool = False) -> None:
    """Puts `content` (mode 0600) at `path` by way of `temporary`, a fresh name on the same file system.

    `durable` waits until the disk has the content, for what could not be made again after a power cut.
    """
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@dataclass(frozen=True)
class Cache:
    """One directory of files named by relative paths such as "kernels/softmax-1f0c.so".

    `behind` is an older directory that is still read, though no longer written to.
    """

    root: Path
    behind: Cache | None = None

    def folder(self, name: str) -> Path:
        """The sub-directory `name`, made if needed with mode 0700. Falls back as `write` does."""
        return self._attempt(lambda cache: cache._folder(name))

    def write(self, name: str, payload: bytes, *, sealed: bool = True, durable: bool = False) -> Path:
        """Writes the file `name` atomically and returns where it is.

        If the directory cannot take it, warns once and writes to the private directory; raises CacheError only when
        that fails too. Several threads and processes may write one name at a time: a reader sees one whole file.
        """
        content = payload + seal(name, payload) if sealed else payload

        def put(cache: Cache) -> Path:
            path = cache._folder(os.path.dirname(name)) / os.path.basename(name)
            write_atomically(path, content, cache._temporary(), durable)
            return path

        return self._attempt(put)

    @property
    def in_force(self) -> Cache:
        """This directory, or the one that replaces it since it proved unusable."""
        return _replacements.get(self.root, self)

    def holds(self, name: str) -> bool:
        """Whether there is a file `name`, whole or not."""
        return any((cache.root / name).exists() for cache in self._chain())

    def stem(self, folder: str, name: str, key: str, suffix: str) -> str:
        """What the files kept under `key` in `folder` are called, but for their suffixes: readable by `name`, or by the name
        that the same thing was first asked for by, if there is a file with `suffix` of it."""
        stem = f"{folder}/{re.sub(r'[^A-Za-z0-9_]+', '_', name)[:60]}-{key}"
        if self.holds(stem + suffix):
            return stem
        found = (path for cache in self._chain() for path in (cache.root / folder).glob(f"*-{key}{suffix}"))
        first = next(found, None)
        return stem if first is None else f"{folder}/{first.name.removesuffix(suffix)}"

    def read(self, name: str) -> bytes | None:
        """The payload of the sealed file `name`; None if there is none or it was damaged (then it is set aside)."""
        found = self._find(name)
        return found[1] if found else None

    def check(self, name: str) -> Path | None:
        """Where the sealed file `name` is, whole at this moment; None as for `read`."""
        found = self._find(name)
        return found[0] if found else None

    def scratch(self) -> Path:
        """A fresh file name in the cache's own file system, for a file that another program is going to write."""
        return self._attempt(lambda cache: cache._temporary())

    def set_aside(self, name: str, why: str) -> None:
        """Renames the file `name` to `name.bad` with a warning, so that nobody uses it and a person can look at it."""
        for cache in self._chain():
            path = cache.root / name
            try:
                os.replace(path, path.with_name(path.name + ".bad"))
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("%s %s and cannot be moved away (%s); it is not used.", path, why, error)
                continue
            log.warning("%s %s; it was set aside as %s.bad and is made again.", path, why, path.name)

    def give_up(self, error: OSError, trusted: bool = True) -> None:
        """Makes this process write to its private directory from now on; raises CacheError if this one is it.

        What a `trusted` directory holds is still read.
        """
        home = private().root
        if self.root == home:
            raise _no_directory(home, error)
        with _lock:
            if self.root in _replacements:
                return
            _replacements[self.root] = Cache(home, behind=self if trusted else None)
        log.warning(
            "The cache directory %s cannot be used (%s); this process keeps compiled kernels and measurements in %s "
            "and removes them when it ends. Set POLYTILE_CACHE_DIR to a directory of your own with free space.",
            self.root,
            error.strerror or error,
            home,
        )

    def _attempt(self, action: Callable[[Cache], T]) -> T:
        """`action` on the directory in force, and once more on the private one if that turns out to be unusable."""
        cache = self.in_force
        try:
            return action(cache)
        except OSError as error:
            cache.give_up(error)
        return self._attempt(action)

    def _chain(self) -> Iterator[Cache]:
        cache: Cache | None = self.in_force
        while cache is not None:
            yield cache
            cache = cache.behind

    def _find(self, name: str) -> tuple[Path, bytes] | None:
        damaged = False
        for cache in self._chain():
            path = cache.root / name
            try:
                payload = unseal(name, path.read_bytes())
            except OSError:
                continue
            if payload is not None:
                return path, payload
            damaged = True
        if damaged:
            self.set_aside(name, "is truncated or was not written by polytile")
        return None

    def _folder(self, folder: str) -> Path:
        path = self.root / folder
        if not path.is_dir():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def _temporary(self) -> Path:
        return self._folder("tmp") / f"{os.getpid()}-{os.urandom(6).hex()}"


_lock = locks.lock()
_replacements: dict[Path, Cache] = {}


def _no_directory(place: Path | str, error: OSError) -> CacheError:
    return CacheError(
        f"polytile needs a directory for compiled kernels, but neither the one that the option cache_dir names nor "
        f"{place} can be used ({error.strerror or error}). Set POLYTILE_CACHE_DIR or TMPDIR to a directory with free "
        f"space."
    )


@functools.cache
def private() -> Cache:
    """The temporary directory of this process (mode 0700), removed when the process ends."""
    try:
        root = Path(tempfile.mkdtemp(prefix="polytile-"))
    except OSError as error:
        raise _no_directory("a temporary directory", error) from error
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked child that ends earlier
            shutil.rmtree(root, ignore_errors=True)

    atexit.register(remove)
    return Cache(root)


@functools.cache
def _opened(root: Path) -> Cache:
    cache = Cache(root)
    try:
        if not root.is_absolute():
            raise FileNotFoundError(errno.ENOENT, "this user has no home directory")
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = root.stat()
        if (own := within(root)) != root:
            own.mkdir(mode=0o700, exist_ok=True)
            root, cache, status = own, Cache(own), own.lstat()
        distrust = _distrust(status)
        if distrust:
            cache.give_up(PermissionError(errno.EACCES, distrust), trusted=False)
        elif not os.access(root, os.W_OK | os.X_OK):
            cache.give_up(PermissionError(errno.EACCES, "it is read-only"))
        else:
            _sweep(root / "tmp")
    except OSError as error:
        cache.give_up(error)
    return cache


def within(root: Path) -> Path:
    """Where in the directory `root` the files of this user are kept: in itself, or, where every user may write to it, in one of
    the user's own, which may still have to be made."""
    try:
        shared = root.stat().st_mode & stat.S_IWOTH
    except OSError:
        return root
    return root / f"user-{os.getuid()}" if shared else root


def _distrust(status: os.stat_result) -> str | None:
    """Why code must not be loaded from a directory with this status: someone else could have put it there."""
    if not stat.S_ISDIR(status.st_mode):
        return "what stands in its place is no directory"
    if status.st_mode & stat.S_IWOTH:
        return "every user may write to it, so its kernels cannot be trusted"
    if status.st_uid not in (0, os.getuid()):
        return f"it belongs to another user, number {status.st_uid}, so its kernels cannot be trusted"
    return None


def _sweep(folder: Path) -> None:
    """Deletes temporary files that dead processes left behind."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.stat().st_mtime < time.time() - STALE_SECONDS:
                path.unlink()


def current() -> Cache:
    """The cache that the options in force ask for: `cache_dir`, or a private directory where `persist` is off."""
    if not options.get("persist"):
        return private()
    return _opened(options.cache_dir()).in_force


def remembered(name: str, make: Callable[[], str]) -> str:
    """The text of the sealed file `name` of the cache in force; what `make` gives where there is none, which is written there if
    the disk takes it. What `make` raises is not remembered."""
    cache = current()
    known = cache.read(name)
    if known is not None:
        return known.decode()
    made = make()
    with contextlib.suppress(CacheError):  # of which there was a warning
        cache.write(name, made.encode())
    return made


def directory() -> Path:
    """Root of the cache in force."""
    return current().root


def folder(name: str) -> Path:
    """Sub-directory `name` of the cache in force, made if needed."""
    return current().folder(name)


def reset() -> None:
    """Forgets which directories were found unusable, so that the next use tries them again."""
    _replacements.clear()
    _opened.cache_clear()
