"""Plan files: every decision of a program, pinned. Same plan, same kernels.

A plan is JSON: {"format": "polytile plan", "version": 1, "decisions": [{"kernel": name, "digest": ..., "dtypes":
[...], "layouts": [...], "regime": "M=512..723%16", "candidate": ..., "source": hash, "sizes": {...}}, ...]}. A
decision is found by the kernel's digest, dtypes, layouts and regime; name and sizes are there for readers, and
`device` and `threads` do not matter, so that a plan works on another machine of the same kind.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polytile import options
from polytile.errors import OptionError
from polytile.multikernel.decision import Decision
from polytile.multikernel.selector import Answer, Request
from polytile.multikernel.spec import KernelSpec
from polytile.problem import digest

FORMAT, VERSION = "polytile plan", 1


@dataclass(frozen=True)
class Plan:
    """The decisions of one file: (what is decided) → candidate name and source hash."""

    path: str
    decisions: Mapping[str, tuple[str, str]]

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Plan:
        """Raises OptionError, with what to do, where there is no such file or it is no plan."""
        try:
            content = json.loads(Path(path).expanduser().read_text())
            if content["format"] != FORMAT or content["version"] != VERSION:
                raise ValueError(f"it is of version {content['version']}, this polytile reads {VERSION}")
            decisions = {_key(entry): (entry["candidate"], entry["source"]) for entry in content["decisions"]}
        except FileNotFoundError:
            raise OptionError(
                f"option 'plan' names {os.fspath(path)}, which does not exist; "
                "write a plan there first or leave the option empty."
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OptionError(
                f"option 'plan' names {os.fspath(path)}, which is no plan file ({error}); write it again."
            ) from None
        return Plan(os.fspath(path), decisions)


def write(path: str | os.PathLike[str], decided: Iterable[tuple[KernelSpec, Decision, str]]) -> None:
    """Writes a plan of (spec, decision, source hash of its candidate), atomically."""
    entries = [
        {
            "kernel": spec.name,
            **what(spec, decision.regime),
            "candidate": decision.candidate,
            "source": source,
            "sizes": dict(decision.sizes),
        }
        for spec, decision, source in decided
    ]
    entries.sort(key=lambda entry: (str(entry["kernel"]), _key(entry)))
    text = json.dumps({"format": FORMAT, "version": VERSION, "decisions": entries}, indent=1)
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    Path(temporary).write_text(text + "\n")
    os.replace(temporary, path)


def what(spec: KernelSpec, regime: str) -> dict[str, Any]:
    """What a plan's decision is about, as JSON values."""
    dtypes = [str(arg.dtype).removeprefix("torch.") for arg in spec.args]
    return {"digest": spec.kernel, "dtypes": dtypes, "layouts": list(spec.layouts), "regime": regime}


def choose(request: Request) -> Answer | None:
    """The pinned candidate; a note where the plan has none for this regime or has one that cannot run or was
    changed."""
    path = options.get("plan")
    if not path:
        return None
    found = _opened(path, _stamp(path)).decisions.get(_key(what(request.spec, request.regime)))
    if found is None:
        return Answer(None, "not in the plan")
    name, source = found
    candidate = next((candidate for candidate in request.alive if candidate.name == name), None)
    if candidate is None:
        return Answer(None, f"the plan's {name!r} cannot run here")
    changed = "" if candidate.source_hash == source else ", though its source has changed since"
    return Answer(candidate, f"pinned by {path}{changed}")


def _key(entry: Mapping[str, Any]) -> str:
    return digest(json.dumps([entry[name] for name in ("digest", "dtypes", "layouts", "regime")]), 24)


@functools.lru_cache(maxsize=8)
def _opened(path: str, stamp: tuple[int, int]) -> Plan:
    return Plan.read(path)


def _stamp(path: str) -> tuple[int, int]:
    """Changes when the file does; (0, 0) where there is none."""
    try:
        status = Path(path).expanduser().stat()
        return status.st_mtime_ns, status.st_ino
    except OSError:
        return 0, 0


__all__ = ["FORMAT", "Plan", "choose", "what", "write"]
