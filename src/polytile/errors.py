"""The error catalogue: one class per kind of trouble. A message says what was asked, what is so, and what to do.

Subclasses that carry more, such as the command of a compiler, stand beside what raises them.
"""

from __future__ import annotations


class PolytileError(Exception):
    """Base of every error that polytile raises on purpose."""


class OptionError(PolytileError, ValueError):
    """An option is unknown, its value is none that it takes, or what a package registers is not what goes there."""


class HintError(PolytileError, ValueError):
    """Hints are no sizes, name a size that a graph does not have, or take more memory than there is."""


class SignatureError(PolytileError, ValueError):
    """The signature of a hand-written kernel cannot be read, or what is given for the kernel does not fit it."""


class ConfigTableError(PolytileError, ValueError):
    """A config table is not there, is not what it must be, or a device family is not known."""


class CompilerMissing(PolytileError):
    """No C++ compiler was found."""


class CompileFailed(PolytileError):
    """A compiler rejected generated code, or what it made cannot be loaded; names the kernel and where its source is."""


class DivisionByZero(PolytileError, IndexError, RuntimeError):
    """An integer is divided by 0: a run-time check, as of an index, and eager's RuntimeError."""

    def __init__(self) -> None:
        super().__init__("ZeroDivisionError")


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
    """A candidate cannot run here, by what is known of it; it takes no further part."""


class ResourcesExceeded(CandidateRejected):
    """A compiled kernel spills registers, or needs more shared memory than a block may have; it is not run."""


class NoCandidate(PolytileError):
    """No candidate of a MultiKernel can run at the sizes at hand."""


class InvalidInput(PolytileError, ValueError):
    """An argument of a compiled function or of a kernel is not what it needs: its shape, its device, or, where the option
    `check_inputs` is on, its values."""


class PlanError(PolytileError):
    """A plan file cannot be read or written as asked."""


class NotInPlan(InvalidInput):
    """The plan in force does not say what to run for these arguments, and the option `plan_missing` makes that an error."""


class StoreError(PolytileError):
    """A measurement store, or a file of exported measurements, is not there or is not what it should be."""


class IRError(PolytileError):
    """A program breaks a rule of the IR, or holds what no rule provides for. From the verifier it names the pass, the operation
    and the rule."""


class LoweringError(PolytileError):
    """An operator's arguments are outside what its lowering covers; the operator becomes a library call."""


class LoweringFailed(PolytileError):
    """A lowering raised an error of its own, or a graph is not of the form it must have: a defect of polytile."""
