"""Failures of polytile to compile: reported once, with a script that reproduces them, and left to ATen's operators.

    graph → polytile raises KeyError → warning, counter, explain(), script below the cache directory → the graph as ATen calls

With option on_failure="raise", for polytile's developers, the error is raised instead.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

import torch.fx

from polytile import locks, options
from polytile.counters import counters
from polytile.errors import CacheError, DeviceLost, HintError, NotInPlan, OptionError, PlanError
from polytile.frontend.reproducer import script
from polytile.problem import digest
from polytile.runtime import cache

log = logging.getLogger("polytile")

CALLERS = (HintError, NotInPlan, OptionError, PlanError)
"""Errors in what the caller has asked for."""

RAISED = (*CALLERS, DeviceLost)
"""Errors that are not failures of polytile and are passed to the caller, as are Dynamo's own, which make it retrace."""


@dataclass(frozen=True)
class Failure:
    """`what` could not be compiled because of `error`. The file `script` reproduces it; "" if none could be written."""

    what: str
    error: str
    script: str

    @property
    def reason(self) -> str:
        """The reason for the library call in its place."""
        return f"{self.what} failed: {self.error}"


_lock = locks.lock()
_told: set[tuple[str, str]] = set()


def reset() -> None:
    """Forget which failures have been reported."""
    with _lock:
        _told.clear()


def is_raised(error: Exception) -> bool:
    """Whether an error is raised instead of being replaced by ATen calls."""
    dynamo = sys.modules.get("torch._dynamo.exc")  # importing it takes 0.5 s, which the compiling process avoids
    raised = RAISED if dynamo is None else (*RAISED, dynamo.TorchDynamoException)
    return isinstance(error, raised) or bool(options.get("on_failure") == "raise")


def failure(kind: str, name: str, error: Exception, graph: torch.fx.GraphModule) -> Failure:
    """Count and report that `name`, of the `kind` "graph" or "lowering", failed in `graph`. Each error of a kind is reported
    once."""
    text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    what = f"the lowering of {name}" if kind == "lowering" else f"the {kind} {name}"
    made = Failure(what, text, _written(graph, name, f"{type(error).__name__}: {error}"))
    counters.add("failures")
    with _lock:
        first = (kind, text) not in _told
        _told.add((kind, text))
    if first:
        again = f" {made.script} shows it again; please send it with a report." if made.script else ""
        log.warning("polytile failed to compile %s and runs ATen's operators instead (%s).%s", made.what, text, again)
        log.info("polytile failed", exc_info=error)
    return made


def _written(graph: torch.fx.GraphModule, name: str, text: str) -> str:
    """The path of the script that compiles `graph` again; "" if the cache directory is not writable."""
    try:
        content = script(graph, text)
        stem = "".join(c if c.isalnum() else "_" for c in name)
        return str(cache.current().write(f"failures/{stem}-{digest(content)[:8]}.py", content.encode(), sealed=False))
    except CacheError as error:
        log.info("%s", error)
    except Exception:  # the graph may be odd enough to fail here too
        log.info("There is no script for the failure of %s.", name, exc_info=True)
    return ""
