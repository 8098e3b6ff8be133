"""Where and on what a benchmark ran: the package's own facts with the revision of the working tree.

`python -m benchmarks.environment` prints them as JSON.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import torch

from polytile.report import environment as facts

ROOT = Path(__file__).resolve().parent.parent

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where the demo computes."""


def revision() -> str:
    """The commit checked out, with "+" where files differ from it; empty outside a repository."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if commit and git("status", "--porcelain", "--untracked-files=no") else "")
    except OSError:
        return ""


def environment() -> dict[str, str]:
    """The package's environment facts, and "revision" where the working tree is a repository."""
    found = facts()
    commit = revision()
    return {**found, "revision": commit} if commit else found


if __name__ == "__main__":
    print(json.dumps(environment(), indent=2))
