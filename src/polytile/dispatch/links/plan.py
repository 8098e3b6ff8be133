"""The decision that the plan file of the option `plan` pins (dispatch/planfile.py).

The option `plan_missing` decides if the plan says nothing, or pins a kernel that has changed or cannot run: "warn" logs it and
lets the weaker links answer as if there were no plan (a changed kernel still runs); "error" raises NotInPlan. Pinned kernels
are never measured.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path

from polytile import options
from polytile.dispatch.plan_conditions import plan_conditions
from polytile.dispatch.planfile import Key, Plan, differences, here, key_of
from polytile.dispatch.request import Answer, Request
from polytile.dispatch.spec import KernelSpec
from polytile.errors import NotInPlan, OptionError, PlanError
from polytile.facts import Regime, texts
from polytile.problem import sizes_text

log = logging.getLogger("polytile.dispatch")


def choose(request: Request) -> Answer | None:
    """The pinned candidate; a note if the plan has none for this regime or one that cannot run."""
    path = options.get("plan")
    if not path:
        return None
    key = _key(request.spec, request.regime)
    pinned = opened(path).by_key.get(key)
    if pinned is None:
        others = " or ".join(", ".join(conditions) or "defaults" for conditions in opened(path).other_conditions(key))
        now = ", ".join(texts(plan_conditions(request.spec.target.type))) or "defaults"
        return _missing(request, path, f"the plan pins it for {others}, here are {now}" if others else "not in the plan")
    candidate = next((candidate for candidate in request.alive if candidate.name == pinned.candidate), None)
    if candidate is None:
        return _missing(request, path, f"the plan's {pinned.candidate!r} cannot run here")
    if candidate.source_hash == pinned.source:
        return Answer(candidate, f"pinned by {path}")
    _missing(request, path, f"the source of {pinned.candidate!r} has changed since the plan was made")
    return Answer(candidate, f"pinned by {path}, though its source has changed since")


def subdivides(spec: KernelSpec, regime: Regime) -> bool:
    """Whether the plan in force, if there is one, pins sub-buckets of this regime in place of the whole."""
    path = options.get("plan")
    return bool(path) and _key(spec, regime) in opened(path).subdivided


def exact_sizes(spec: KernelSpec, regime: Regime) -> tuple[Mapping[str, int], ...]:
    """The exact sizes in this regime that the plan in force, if there is one, pins by themselves. Raises OptionError where the
    plan leaves one of the sizes out."""
    path = options.get("plan")
    pinned = opened(path).exact_sizes.get(_key(spec, regime), ()) if path else ()
    for sizes in pinned:
        if lacking := spec.keys.bucketed - sizes.keys():
            raise OptionError(
                f"option 'plan': {path} pins kernel {spec.name!r} at sizes without {', '.join(sorted(lacking))}; write the "
                "plan again with polytile.save_plan."
            )
    return pinned


def _key(spec: KernelSpec, regime: Regime) -> Key:
    return key_of(spec, plan_conditions(spec.target.type), regime)


def opened(path: str) -> Plan:
    """The plan at `path`, read once for each state of the file. Raises OptionError where it cannot be read."""
    return _opened(path, _stamp(path))


def _missing(request: Request, path: str, what: str) -> Answer:
    """Warns or raises as `plan_missing` says, if this is a call and not a preview of one."""
    sizes = sizes_text(request.spec.keys.deciding(request.ints))
    if request.args is not None:
        if options.get("plan_missing") == "error":
            raise NotInPlan(
                f"kernel {request.spec.name!r} at {sizes or 'any size'} (regime {str(request.regime) or 'of all sizes'}): {what} "
                f"({path}); write the plan again with polytile.save_plan after a run at these sizes, or set the option "
                "plan_missing to 'warn'."
            )
        log.warning("Kernel %r at %s: %s (%s).", request.spec.name, sizes or "any size", what, path)
    return Answer(None, what)


@functools.lru_cache(maxsize=8)
def _opened(path: str, stamp: tuple[int, int]) -> Plan:
    try:
        plan = Plan.read(path)
    except PlanError as error:
        raise OptionError(f"option 'plan': {error}") from None
    elsewhere = differences(plan.environment, here())
    if elsewhere:
        log.warning("The plan %s was made elsewhere, so results and times may differ: %s.", path, "; ".join(elsewhere))
    return plan


def _stamp(path: str) -> tuple[int, int]:
    """A stamp that changes with the file; (0, 0) if there is no file."""
    try:
        status = Path(path).expanduser().stat()
        return status.st_mtime_ns, status.st_ino
    except OSError:
        return 0, 0
