"""The cache directory: atomic, private, checked; and what happens where it cannot be used."""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polytile import options
from polytile.errors import CacheError, OptionError
from polytile.runtime import cache


def test_a_file_reads_back_and_the_directories_are_the_users_alone(home: Path) -> None:
    path = cache.current().write("things/a.json", b"payload")
    assert cache.current().read("things/a.json") == b"payload"
    assert path == home / "things" / "a.json"
    for folder in (home, home / "things"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list((home / "tmp").iterdir()) == []


def test_an_absent_file_is_none_without_a_warning(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert cache.current().read("things/none") is None
    assert caplog.records == []


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut in the payload": lambda content: content[:3],
    "cut in the seal": lambda content: content[:-1],
    "a bit changed": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "foreign": lambda content: b"something else entirely, written by another program, longer than a seal line is" * 3,
    "appended to": lambda content: content + b"more",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_set_aside_with_a_warning(home: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    path = cache.current().write("things/a", b"payload of some length")
    path.write_bytes(DAMAGE[kind](path.read_bytes()))
    assert cache.current().check("things/a") is None
    assert not path.exists() and path.with_name("a.bad").exists()
    assert "truncated or was not written by polytile" in caplog.text
    cache.current().write("things/a", b"again")
    assert cache.current().read("things/a") == b"again"


def test_a_file_copied_to_another_name_is_not_accepted(home: Path) -> None:
    content = cache.current().write("things/a", b"payload").read_bytes()
    (home / "things" / "b").write_bytes(content)
    assert cache.current().read("things/b") is None
    assert cache.current().read("things/a") == b"payload"


def test_a_failed_write_leaves_the_old_file_and_no_temporary(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.current().write("a", b"old")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.current().write("a", b"new")
    assert cache.current().read("a") == b"old"
    assert list((home / "tmp").iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_an_unusable_directory_warns_once_and_a_private_one_takes_over(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    cache.current().write("before", b"still readable")
    replace = os.replace

    def refusing(source: Any, target: Any) -> None:
        if str(target).startswith(str(home)):
            raise OSError(code, os.strerror(code))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refusing)
    path = cache.current().write("a", b"payload")
    cache.current().write("b", b"payload")
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert os.strerror(code) in caplog.text and "POLYTILE_CACHE_DIR" in caplog.text and str(home) in caplog.text
    assert home not in path.parents and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert cache.current().read("a") == b"payload"
    assert cache.current().read("before") == b"still readable"
    assert cache.directory() == cache.private().root


def test_a_file_in_place_of_the_directory_falls_back(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    home.write_text("not a directory")
    assert cache.folder("kernels") == cache.private().root / "kernels"
    assert len(caplog.records) == 1


def test_in_a_directory_that_everybody_may_write_to_it_is_one_of_the_users_own(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.current().write("planted", b"payload")
    home.chmod(0o777)
    cache.reset()
    assert cache.current().read("planted") is None
    path = cache.current().write("kept", b"payload")
    own = home / f"user-{os.getuid()}"
    assert cache.directory() == own == path.parent and stat.S_IMODE(own.stat().st_mode) == 0o700
    cache.reset()
    assert cache.current().read("kept") == b"payload" and cache.within(own) == own
    assert caplog.records == []


@pytest.mark.parametrize("planted", ["another user's", "writable for all", "a link", "a file"])
def test_what_stands_in_the_place_of_ones_own_directory_is_not_even_read(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    cache.current()
    home.chmod(0o777)
    own, elsewhere = home / f"user-{os.getuid()}", tmp_path / "elsewhere"
    own.mkdir(mode=0o700)
    cache.Cache(own).write("planted", b"payload")
    if planted == "another user's":
        if os.getuid() == 0:
            os.chown(own, 4711, -1)
        else:
            monkeypatch.setattr(os, "getuid", lambda: 4711)
            own.rename(home / "user-4711")
    elif planted == "writable for all":
        own.chmod(0o777)
    else:
        own.rename(elsewhere)
        own.symlink_to(elsewhere) if planted == "a link" else own.write_text("")
    cache.reset()
    assert cache.current().read("planted") is None
    assert cache.directory() == cache.private().root
    assert len(caplog.records) == 1 and "cannot be used" in caplog.text


def test_nowhere_to_write_is_an_error_that_says_what_to_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache.private()
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CacheError, match=r"Set POLYTILE_CACHE_DIR or TMPDIR"):
        cache.current().write("a", b"payload")


def test_without_persistence_nothing_is_written_to_the_cache_directory(home: Path) -> None:
    with options.override(persist=False):
        path = cache.current().write("a", b"payload")
    assert home not in path.parents and not home.exists()


def test_leftovers_of_dead_processes_are_swept_and_fresh_temporaries_kept(home: Path) -> None:
    old, fresh = cache.current().scratch(), cache.current().scratch()
    for path in (old, fresh):
        path.write_bytes(b"")
    os.utime(old, (0, time.time() - 2 * cache.STALE_SECONDS))
    cache.reset()
    cache.current()
    assert not old.exists() and fresh.exists()


def test_a_relative_directory_stays_where_the_process_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with options.override(cache_dir="kept-here"):
        path = cache.current().write("a", b"payload")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert cache.current().read("a") == b"payload"
    assert path == tmp_path / "kept-here" / "a"


@pytest.mark.parametrize("given", [None, ""])
def test_without_a_name_or_with_an_empty_one_it_is_the_users_own_directory(
    given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("POLYTILE_CACHE_DIR", raising=False)
    if given is not None:
        monkeypatch.setenv("POLYTILE_CACHE_DIR", given)
    assert cache.current().write("a", b"payload") == tmp_path / ".cache" / "polytile" / "a"


def test_a_user_without_a_home_directory_gets_a_private_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it is where the system knows no such user
    with options.override(cache_dir="~/.cache/a-place-of-nobody"):
        assert cache.directory() == cache.private().root
    assert "this user has no home directory" in caplog.text and "Set POLYTILE_CACHE_DIR" in caplog.text


def test_a_misspelt_option_names_the_right_one() -> None:
    with pytest.raises(OptionError, match="did you mean 'cache_dir'"), options.override(cach_dir="/tmp/x"):
        pass
