"""What `polytile tune` is asked to tune: a function in a file with shapes, or a file of such problems."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from polytile.cli import kernel_targets
from polytile.cli.naming import LIST_OF_PROBLEMS, TargetError, check_files, file_and_name
from polytile.cli.plain import in_short

Calls = Sequence[tuple[Any, ...]]

FIELDS = ("target", "shapes", "at", "dtype", "device")
"""What a line of a file of problems may say; `target` it must."""


@dataclass(frozen=True)
class Kind:
    """The element type and the device of the tensors that are made for shapes."""

    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Job:
    """A function, and the arguments of each call of it. `compiled`: whether it is compiled first, as whatever is no kernel is."""

    function: Callable[..., Any]
    calls: Calls
    compiled: bool = True


def jobs_of(target: str, shapes: Sequence[str], kind: Kind, at: Sequence[str] = ()) -> list[Job]:
    """Everything to tune; `at` has sizes of a kernel, as "M=16,N=4096". Raises TargetError, with what to do, for what cannot
    be."""
    if target.endswith(LIST_OF_PROBLEMS):
        if shapes or at:
            raise TargetError(f"{target} is a file of problems, which says the shapes itself; leave out --shapes and --at.")
        return _listed(Path(target), kind)
    return [_job_of(target, shapes, kind, at)]


def _job_of(target: str, shapes: Sequence[str], kind: Kind, at: Sequence[str]) -> Job:
    function = _function(target)
    launched = kernel_targets.launch_of(function, getattr(torch, kind.dtype, None), kind.device)
    if launched is None:
        if at:
            raise TargetError(f"{target} is no kernel of polytile.kernel or polytile.autotune; give --shapes in place of --at.")
        return Job(*calls_of(target, shapes, kind, function))
    if shapes:
        raise TargetError(f"{target} is a kernel; say its sizes by name, as --at M=16,N=4096, in place of --shapes.")
    launch, hints = launched
    try:
        calls = [(kernel_targets.sizes_of(text),) for text in at] or [(dict(hint),) for hint in hints]
    except ValueError:
        raise TargetError(f"--at {' --at '.join(at)} names no sizes; write them as --at M=16,N=4096.") from None
    if not calls:
        raise TargetError(f"{target} is a kernel without hints=; say at which sizes it is to be tuned, as --at M=16,N=4096.")
    return Job(launch, calls, compiled=False)


def _listed(path: Path, kind: Kind) -> list[Job]:
    """One job for each line of a file of problems; targets are relative to the file."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise TargetError(f"the file of problems {path} cannot be read: {error.strerror}.") from None
    jobs = [_job(line, f"{path}, line {number}", path.parent, kind) for number, line in enumerate(lines, 1) if line.strip()]
    if not jobs:
        raise TargetError(f"{path} has no problems; write one a line, as {EXAMPLE}.")
    return jobs


EXAMPLE = '{"target": "kernels.py:softmax", "shapes": ["64x512"], "dtype": "float32"}'


def _job(line: str, place: str, beside: Path, kind: Kind) -> Job:
    try:
        said = json.loads(line)
        if not (isinstance(said, dict) and isinstance(said.get("target"), str) and said.keys() <= set(FIELDS)):
            raise ValueError(line)
        shapes, at = ([str(text) for text in said.get(word, ())] for word in ("shapes", "at"))
    except (ValueError, TypeError):
        raise TargetError(f"{place} is no problem; write one as {EXAMPLE}.") from None
    try:
        own = Kind(str(said.get("dtype", kind.dtype)), str(said.get("device", kind.device)))
        return _job_of(str(beside / said["target"]), shapes, own, at)
    except TargetError as error:
        raise TargetError(f"{place}: {error}") from None


def calls_of(
    target: str, shapes: Sequence[str], kind: Kind, function: Callable[..., Any] | None = None
) -> tuple[Callable[..., Any], Calls]:
    """The function to tune (that of this name where none is given) and the arguments of each call. Raises TargetError, with what
    to do, for anything else."""
    function = _function(target) if function is None else function
    if shapes:
        return function, [_tensors(text, kind) for text in shapes]
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise TargetError(
            f"{target} cannot be called without arguments ({error}); give --shapes to call it with tensors, or name a "
            "function that returns a callable and a list of argument tuples."
        ) from None
    try:
        result = function()
    except Exception as error:
        raise TargetError(f"{target} cannot say what to tune: {in_short(error)}.") from error
    if not (isinstance(result, tuple) and len(result) == 2 and callable(result[0]) and _are_calls(result[1])):
        raise TargetError(
            f"{target} returned {type(result).__name__}; it has to return a callable and a list of argument tuples: "
            "return softmax, [(torch.randn(64, 512),), (torch.randn(300, 4096),)]."
        )
    return result[0], result[1]


def _function(target: str) -> Callable[..., Any]:
    file, name = file_and_name(target)
    module = module_of(Path(file)) if Path(file).is_file() else _imported(file, target)
    function = getattr(module, name, None)
    if not callable(function) and not hasattr(function, "run"):
        there = ", ".join(n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__)
        raise TargetError(f"{file} has no function {name!r}; it has {there or 'none at all'}.")
    return function


def _imported(name: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise TargetError(f"module {name} cannot be imported: {in_short(error)}.") from error
        raise TargetError(f"there is no file or module {name}; {target!r} should be FILE.py:function.") from None
    except Exception as error:
        raise TargetError(f"module {name} cannot be imported: {in_short(error)}.") from error


def module_of(path: Path) -> ModuleType:
    """The module that a Python file makes when it is run. Raises TargetError where there is none."""
    check_files([path])
    own_name = path.stem if path.stem not in sys.modules else f"polytile_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(own_name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[own_name] = module
    sys.path.insert(0, str(path.parent.absolute()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise TargetError(f"{path} cannot be run: {in_short(error)}.") from error
    return module


def _tensors(text: str, kind: Kind) -> tuple[torch.Tensor, ...]:
    dtype = getattr(torch, kind.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise TargetError(f"torch has no element type {kind.dtype!r}; float32, bfloat16 and int64 are some that it has.")
    try:
        shapes = [[int(size) for size in shape.split("x")] for shape in text.split(",")]
        if any(size < 0 for shape in shapes for size in shape):
            raise ValueError(text)
    except ValueError:
        raise TargetError(f"{text!r} is no list of shapes; write one as 64x512, several as 64x512,512x256.") from None
    floating = dtype.is_floating_point or dtype.is_complex
    try:
        device = torch.device(kind.device)
        return tuple((torch.randn(s) if floating else torch.zeros(s)).to(device, dtype) for s in shapes)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        reason = str(error).splitlines()[0].rstrip(".")
        raise TargetError(f"no tensors can be made on the device {kind.device!r} ({reason}); is it there?") from None


def _are_calls(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(args, tuple) for args in value)
