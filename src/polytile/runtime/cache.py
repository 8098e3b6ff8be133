"""The cache directory: where it is, how files are written, and how damaged files are kept from being used.

Every file that a program will trust (a shared object, a record of the toolchain) is written under a temporary name,
sealed with a checksum line and renamed into place. Readers see the whole file or none. A file whose seal does not match
its name and content is renamed to `*.bad` with a warning and counts as absent, so it is made again.

In a world-writable directory, files go to a private subdirectory of the user. An unusable directory (no permission,
read-only, full, or another user's) causes one warning. From then on the process writes to a private temporary
directory, and still reads from the first one if that can be trusted.
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
"""Age in seconds from which a temporary file counts as left behind by a dead process."""

_SEAL = b"\npolytile-sha256 "
_SEAL_LENGTH = len(_SEAL) + 64 + 1


def seal(name: str, payload: bytes) -> bytes:
    """The line that ends the file `name` (relative to the cache) with content `payload`.

    ELF loaders and text editors ignore it. A truncated file lacks it, and a file moved to another name does not match
    it.
    """
    return _SEAL + hashlib.sha256(name.encode() + b"\0" + payload).hexdigest().encode() + b"\n"


def unseal(name: str, content: bytes) -> bytes | None:
    """The payload of a sealed file; None if the file is truncated, altered or belongs to another name."""
    payload, line = content[:-_SEAL_LENGTH], content[-_SEAL_LENGTH:]
    return payload if line == seal(name, payload) else None


def write_atomically(path: Path, content: bytes, temporary: Path) -> None:
    """Writes `content` to `path` with mode 0600, through `temporary`, a fresh name on the same file system."""
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@dataclass(frozen=True)
class Cache:
    """A directory of files named by relative paths such as "kernels/softmax-1f0c.so".

    `behind` is an older directory that is still read but no longer written.
    """

    root: Path
    behind: Cache | None = None

    def folder(self, name: str) -> Path:
        """Subdirectory `name`, created with mode 0700 if needed. Falls back as `write` does."""
        return self._attempt(lambda cache: cache._folder(name))

    def write(self, name: str, payload: bytes, *, sealed: bool = True) -> Path:
        """Writes the file `name` atomically and returns its path.

        If the directory does not accept it, warns once and writes to the private directory; raises CacheError only if
        that fails too. Threads and processes may write one name concurrently: readers see one whole file.
        """
        content = payload + seal(name, payload) if sealed else payload

        def put(cache: Cache) -> Path:
            path = cache._folder(os.path.dirname(name)) / os.path.basename(name)
            write_atomically(path, content, cache._temporary())
            return path

        return self._attempt(put)

    @property
    def in_force(self) -> Cache:
        """This directory, or its replacement if it proved unusable."""
        return _replacements.get(self.root, self)

    def holds(self, name: str) -> bool:
        """Whether a file `name` exists, intact or not."""
        return any((cache.root / name).exists() for cache in self._chain())

    def stem(self, folder: str, name: str, key: str, suffix: str) -> str:
        """Path, without suffixes, of the files stored under `key` in `folder`. Contains `name` for readability; if a
        file with `suffix` exists for the key, contains the name it was first stored by."""
        stem = f"{folder}/{re.sub(r'[^A-Za-z0-9_]+', '_', name)[:60]}-{key}"
        if self.holds(stem + suffix):
            return stem
        stored = (path for cache in self._chain() for path in (cache.root / folder).glob(f"*-{key}{suffix}"))
        first = next(stored, None)
        return stem if first is None else f"{folder}/{first.name.removesuffix(suffix)}"

    def read(self, name: str) -> bytes | None:
        """Payload of the sealed file `name`; None if it is absent or damaged. A damaged file is set aside."""
        sealed = self._find(name)
        return sealed[1] if sealed else None

    def check(self, name: str) -> Path | None:
        """Path of the sealed file `name`, intact at this moment; None as for `read`."""
        sealed = self._find(name)
        return sealed[0] if sealed else None

    def scratch(self) -> Path:
        """A fresh file name on the cache's file system, for another program to write to."""
        return self._attempt(lambda cache: cache._temporary())

    def set_aside(self, name: str, why: str) -> None:
        """Renames the file `name` to `name.bad` with a warning, so that nobody uses it and a person can inspect it."""
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
        """Makes this process write to its private directory from now on. Raises CacheError if this is that directory.

        The contents of a `trusted` directory are still read.
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
        """Runs `action` on the current directory, and once more on the private one if the first is unusable."""
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
    """This process's temporary directory (mode 0700), removed when the process ends."""
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
    """Directory of this user's files within `root`: `root` itself or, if `root` is world-writable, a private
    subdirectory, which may not exist yet."""
    try:
        shared = root.stat().st_mode & stat.S_IWOTH
    except OSError:
        return root
    return root / f"user-{os.getuid()}" if shared else root


def _distrust(status: os.stat_result) -> str | None:
    """Why code must not be loaded from a directory with this status: another user could have put it there. None if it may."""
    if not stat.S_ISDIR(status.st_mode):
        return "it exists but is not a directory"
    if status.st_mode & stat.S_IWOTH:
        return "every user may write to it, so its kernels cannot be trusted"
    if status.st_uid not in (0, os.getuid()):
        return f"it belongs to another user, number {status.st_uid}, so its kernels cannot be trusted"
    return None


def _sweep(folder: Path) -> None:
    """Deletes temporary files left behind by dead processes."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.stat().st_mtime < time.time() - STALE_SECONDS:
                path.unlink()


def current() -> Cache:
    """The cache that the current options select: `cache_dir`, or a private directory if `persist` is off."""
    if not options.get("persist"):
        return private()
    return _opened(options.cache_dir()).in_force


def remembered(name: str, make: Callable[[], str]) -> str:
    """Text of the sealed file `name`. If it is absent, returns `make()` and stores it if the disk accepts it.
    Exceptions from `make` are not stored."""
    cache = current()
    known = cache.read(name)
    if known is not None:
        return known.decode()
    made = make()
    with contextlib.suppress(CacheError):  # already reported
        cache.write(name, made.encode())
    return made


def directory() -> Path:
    """Root of the current cache."""
    return current().root


def folder(name: str) -> Path:
    """Subdirectory `name` of the current cache, created if needed."""
    return current().folder(name)


def reset() -> None:
    """Forgets which directories were unusable, so that the next use tries them again."""
    _replacements.clear()
    _opened.cache_clear()
