"""The error catalogue: one class per kind of trouble. A message says what was asked, what is so, and what to do."""

from __future__ import annotations


class PolytileError(Exception):
    """Base of every error that polytile raises on purpose."""


class OptionError(PolytileError, ValueError):
    """An option is unknown or its value is of the wrong type."""


class HintError(PolytileError, ValueError):
    """Hints are no sizes, or name a size that a graph does not have."""


class SignatureError(PolytileError, ValueError):
    """The signature of a hand-written kernel cannot be read."""


class ConfigTableError(PolytileError, ValueError):
    """A config table is not there, is not what it must be, or a device family is not known."""


class CompilerMissing(PolytileError):
    """No C++ compiler was found."""


class CompileFailed(PolytileError):
    """The C++ compiler rejected generated code; carries the command, its messages and the path of the source."""


class DeviceError(PolytileError):
    """A device is not there, not known, or its driver refuses what it was asked."""


class LaunchFailed(DeviceError):
    """The driver refused to launch a kernel, or to load it; names the kernel and what the driver said."""


class DeviceLost(DeviceError):
    """A GPU is gone, or has failed so that this process can run nothing more on it; no kernel is to blame for the call that
    finds out."""


class CacheError(PolytileError):
    """The cache directory cannot be used as asked."""


class CandidateRejected(PolytileError):
    """A candidate gave a wrong result or could not run; it takes no further part."""


class ResourcesExceeded(CandidateRejected):
    """A compiled kernel spills registers, or needs more shared memory than a block may have; it is not run."""


class NoCandidate(PolytileError):
    """No candidate of a MultiKernel can run at the sizes at hand."""


class InvalidInput(PolytileError, ValueError):
    """An argument of a compiled function is not what the kernel needs (NaN check, shape, device)."""


class PlanError(PolytileError):
    """A plan file cannot be read or written as asked."""


class NotInPlan(InvalidInput):
    """The plan in force does not say what to run for these arguments, and the option `plan_missing` makes that an error."""


class StoreError(PolytileError):
    """A measurement store, or a file of exported measurements, is not there or is not what it should be."""


class IRError(PolytileError):
    """The verifier found an illegal program; names the pass, the loop and the rule."""


class LoweringError(PolytileError):
    """An operator's arguments are outside what its lowering covers; the operator becomes a library call."""


class LoweringFailed(PolytileError):
    """A lowering raised an error of its own, or a graph is not of the form it must have: a defect of polytile."""
