"""The error catalogue: one class for each kind of trouble. A message says what was asked, what is so, and what to do.

`python -m scripts.errors_page` writes docs/errors.md from the docstrings.
"""

from __future__ import annotations


class PolytileError(Exception):
    """Base of every error that polytile raises on purpose."""


class OptionError(PolytileError, ValueError):
    """An option or mode is unknown, its value is not one that it takes, or a package registers something that is no option.
    Compare with docs/options.md; the message names the nearest option."""


class HintError(PolytileError, ValueError):
    """Hints are not sizes, name a size that the graph does not have, or need more memory than there is. Name dynamic sizes
    "s0", "s1", ... in the order of the arguments."""


class SizesError(HintError):
    """A file of recorded sizes is missing or malformed, or cannot be written, or sizes are being recorded already. See
    docs/campaigns.md."""


class FrontDoorError(PolytileError):
    """With the option front_door="check": polytile would have run compiled code for a call whose guards do not hold. Please
    report it; front_door="off" has every call go through Dynamo."""


class SignatureError(PolytileError, ValueError):
    """The signature of a kernel of your own cannot be read, or a function given for the kernel does not fit it. See
    docs/kernels.md."""


class ConfigTableError(PolytileError, ValueError):
    """A table of configs is missing or malformed, or a device family is unknown. See docs/configs.md."""


class SourceError(PolytileError, ValueError):
    """A package registers something that is no source of candidates, or under a name that is taken. See docs/extending.md."""


class CompilerMissing(PolytileError):
    """No C++ compiler was found. Install g++ or clang++, or name one with the option `cxx`. Programs run as ATen calls
    without one."""


class CompileFailed(PolytileError):
    """A compiler rejected generated code, or its output cannot be loaded. The message names the kernel and the file with
    its source."""


class DivisionByZero(PolytileError, IndexError, RuntimeError):
    """A kernel divided an integer by 0. Eager raises RuntimeError for it; so does polytile."""

    def __init__(self) -> None:
        super().__init__("ZeroDivisionError")


class IndexOutOfRange(PolytileError, IndexError, RuntimeError):
    """A kernel met an index outside of its dimension. Eager raises IndexError where a tensor is indexed, and RuntimeError where
    elements are gathered or scattered; this is both."""


class DeviceError(PolytileError):
    """A device is missing or unknown, or its driver refuses a request. `polytile doctor` says what is found."""


class LaunchFailed(DeviceError):
    """The driver refused to load or to launch a kernel. The message names the kernel and quotes the driver."""


class DeviceLost(DeviceError):
    """A GPU is gone, or has failed so that this process can run nothing more on it. Start the process again. The call that
    finds out need not be at fault, so no kernel is blamed."""


class CacheError(PolytileError):
    """The cache directory cannot be used. Name another with the option `cache_dir`."""


class CandidateRejected(PolytileError):
    """A candidate cannot run on this device. It takes no further part, so a program does not see this error."""


class ResourcesExceeded(CandidateRejected):
    """A compiled kernel spills registers, or needs more shared memory than a block may have. It is not run."""


class NoCandidate(PolytileError):
    """No candidate of a kernel can run at these sizes. Give a kernel of your own an implementation that is valid there."""


class InvalidInput(PolytileError, ValueError):
    """An argument does not fit the function or kernel: its shape, its device, a tensor without memory of its own, one that
    requires a gradient; or, with the option `check_inputs`, it holds a NaN or an infinity."""


class PlanError(PolytileError):
    """A plan file cannot be read or written, or nothing has been decided yet that a plan could hold."""


class NotInPlan(InvalidInput):
    """The plan in force does not cover these arguments, and the option `plan_missing` is "error". Run the program at these
    sizes without the plan, and save the plan again."""


class PackageError(PolytileError, ValueError):
    """A program has no form as a package, a package is damaged or was made for another machine or version, or a call does not fit
    it. See docs/packages.md."""


class StoreError(PolytileError):
    """A store of measurements, or a file of exported measurements, is missing or damaged, or belongs to another program."""


class ReportError(PolytileError):
    """There is nothing to report on, or a report cannot be written where it was asked for. The message names the argument."""


class CampaignError(PolytileError):
    """A campaign's spec or folder is missing or malformed, its workers cannot work, or its results cannot be written. See
    docs/campaigns.md."""


class IRError(PolytileError):
    """A program breaks a rule of the IR: a defect of polytile. The verifier names the pass, the operation and the rule."""


class LoweringError(PolytileError):
    """An operator has arguments that its lowering does not cover. It runs as an ATen call, so a program does not see this
    error."""


class LoweringFailed(PolytileError):
    """A lowering raised an error of its own, or a graph has an unexpected form: a defect of polytile. The program runs as
    ATen calls; the option `on_failure="raise"` raises the error."""
