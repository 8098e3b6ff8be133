"""How commands name a function: FILE.py:NAME or MODULE:NAME.

Nothing heavy is imported: a name that cannot be right is told at once, and not after the seconds that PyTorch takes to import.
"""

from __future__ import annotations

from pathlib import Path

from polytile.errors import PolytileError

LIST_OF_PROBLEMS = ".jsonl"
"""How a file ends that lists problems, where a command takes one."""


class TargetError(PolytileError):
    """The target of `polytile tune` does not exist, or is not of a kind that can be tuned."""


def file_and_name(target: str) -> tuple[str, str]:
    """The file or module and the function that a target names. Raises TargetError where it is no such name, or no such file is
    there."""
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise TargetError(f"{target!r} names no function; write it as FILE.py:function.")
    if not Path(file).is_file() and not is_module(file):
        raise TargetError(f"there is no file {file}; {target!r} should be FILE.py:function.")
    return file, name


def is_module(file: str) -> bool:
    """Whether the word can be a module's name rather than a file's."""
    return all(part.isidentifier() for part in file.split(".")) and not file.endswith(".py")


def check_target(target: str) -> None:
    """Raises TargetError where a target can be neither a function nor a list of problems."""
    if not target.endswith(LIST_OF_PROBLEMS):
        file_and_name(target)


def check_files(paths: list[Path]) -> None:
    """Raises TargetError where one of these is no file."""
    for path in paths:
        if not path.is_file():
            raise TargetError(f"there is no file {path}.")
