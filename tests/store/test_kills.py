"""Processes that are killed, disks that are full and files that may not be written: with real signals and real limits."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from polytile.store import Store, check
from tests.store.helpers import number, writer
from tests.waiting import PATIENCE, until

ROUNDS = 12
PREAMBLE = f"import sys; sys.path[:0] = {sys.path!r}\nimport tests.store.alone\n"


def test_writers_killed_at_any_moment_lose_one_measurement_at_most_and_never_the_file(tmp_path: Path) -> None:
    path, chance = tmp_path / "s", random.Random(7)
    for again in range(ROUNDS):
        writers = [writer(path, 2 * again + worker, 50_000) for worker in range(2)]
        for process in writers:
            assert process.stdout is not None and process.stdout.readline(), "it began to write"
        for process in writers:
            time.sleep(chance.uniform(0, 0.05))
            os.kill(process.pid, signal.SIGKILL)
        kept = [number(m) for m in Store(path).measurements()]
        assert len(kept) == len(set(kept))
        for worker, process in enumerate(writers):
            assert process.stdout is not None
            written = 1 + max([0, *map(int, process.stdout.read().split())])
            process.wait()
            first = (2 * again + worker) * 100_000
            own = {n - first for n in kept if first <= n < first + 100_000}
            assert own in (set(range(written)), set(range(written + 1)))
    assert not check.check(path).troubles and not list(tmp_path.glob("*.bad"))


def test_a_process_killed_while_it_opens_the_file_leaves_it_usable(tmp_path: Path) -> None:
    chance = random.Random(3)
    for again in range(8):
        path = tmp_path / f"s{again}"
        process = writer(path, 0, 50_000)
        until(path.exists, "the process has begun a file")
        time.sleep(chance.uniform(0, 0.004))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        after = writer(path, 1, 1)
        _, errors = after.communicate(timeout=PATIENCE)
        assert not errors and not list(tmp_path.glob("*.bad"))
        assert 100_000 in map(number, Store(path).measurements()) and not check.check(path).troubles


def test_a_disk_that_fills_up_costs_one_warning_and_keeps_what_was_written(tmp_path: Path) -> None:
    """The limit on the size of files is the system's own refusal to write on."""
    code = PREAMBLE + (
        "import logging, pathlib, resource, signal\n"
        "from polytile.store import Store\n"
        "from tests.store.helpers import ENVIRONMENT, make\n"
        "logging.basicConfig(format='%(message)s')\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "kept = Store(pathlib.Path(sys.argv[1]))\n"
        "kept.append(make(1))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))\n"
        "for m in range(2, 500): kept.append(make(m))\n"
        "assert all(kept.exact(make(m).problem, ENVIRONMENT) for m in range(1, 500))\n"
        "print(kept.persistent)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "False", done.stderr
    assert done.stderr.count("\n") == 1 and "stays in this process" in done.stderr
    kept = sorted(number(m) for m in Store(tmp_path / "s").measurements())
    assert kept == list(range(1, len(kept) + 1)) and 1 < len(kept) < 499
    assert not check.check(tmp_path / "s").troubles and not list(tmp_path.glob("*.bad"))


def test_a_store_in_a_directory_that_may_only_be_read_answers_lookups() -> None:
    """As another user where this one is root, whom no permission holds back."""
    import tempfile

    directory = Path(tempfile.mkdtemp(prefix="polytile-read-only-"))  # pytest's own directories are closed to others
    path = directory / "s"
    process = writer(path, 0, 20)
    process.communicate(timeout=PATIENCE)
    code = PREAMBLE + (
        "import logging, pathlib\n"
        "from polytile.store import Store\n"
        "from tests.store.helpers import ENVIRONMENT, make\n"
        "logging.basicConfig(format='%(message)s')\n"
        "kept = Store(pathlib.Path(sys.argv[1]))\n"
        "assert kept.exact(make(7).problem, ENVIRONMENT)\n"
        "kept.append(make(99)); kept.append(make(98))\n"
        "assert kept.exact(make(99).problem, ENVIRONMENT)\n"
        "print(len(kept.measurements()))\n"
    )
    read_only = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
    try:
        path.chmod(read_only)
        directory.chmod(read_only | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        script = "import os\nos.setgid(65534); os.setuid(65534)\n" if os.geteuid() == 0 else ""
        # The modules are imported before the rights go: a virtual environment may lie in root's own directory.
        early = PREAMBLE + "import polytile.store, polytile.options, tests.store.helpers, pathlib, logging\n"
        done = subprocess.run([sys.executable, "-c", early + script + code, str(path)], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.strip() == "22", done.stderr
        assert done.stderr.count("\n") == 1 and "stays in this process" in done.stderr
    finally:
        directory.chmod(0o700)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM measurements").fetchone() == (20,)
    for left in directory.iterdir():
        left.unlink()
    directory.rmdir()


@pytest.mark.parametrize("name", ["truncated", "foreign"])
def test_a_bad_file_is_set_aside_by_a_program_and_told_of_on_its_stderr(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s"
    writer(path, 0, 50).communicate(timeout=PATIENCE)
    if name == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.write_bytes(b"something else" * 1000)
    _, errors = writer(path, 1, 3).communicate(timeout=PATIENCE)
    assert errors.count("\n") == 1 and "set aside as s.bad" in errors
    assert len(Store(path).measurements()) == 3 and (tmp_path / "s.bad").exists()
