"""What `polytile tune` is asked to tune: a function in a file with shapes, or a file of such problems."""

from __future__ import annotations

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

from polytile.cli.plain import in_short
from polytile.errors import PolytileError

Calls = Sequence[tuple[Any, ...]]

FIELDS = ("target", "shapes", "dtype", "device")
"""What a line of a file of problems may say; `target` it must."""


class TargetError(PolytileError):
    """What `polytile tune` was asked to tune is not there or is not what it has to be."""


@dataclass(frozen=True)
class Kind:
    """Of which element type, and on which device, tensors are made for shapes."""

    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Job:
    """A function to compile, and the arguments of each call of it."""

    function: Callable[..., Any]
    calls: Calls


def jobs_of(target: str, shapes: Sequence[str], kind: Kind) -> list[Job]:
    """Everything to tune. Raises TargetError, with what to do, for what cannot be."""
    if target.endswith(".jsonl"):
        if shapes:
            raise TargetError(f"{target} is a file of problems, which says the shapes itself; leave out --shapes.")
        return _listed(Path(target), kind)
    return [Job(*calls_of(target, shapes, kind))]


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
        shapes = [str(shape) for shape in said.get("shapes", ())]
    except (ValueError, TypeError):
        raise TargetError(f"{place} is no problem; write one as {EXAMPLE}.") from None
    try:
        own = Kind(str(said.get("dtype", kind.dtype)), str(said.get("device", kind.device)))
        return Job(*calls_of(str(beside / said["target"]), shapes, own))
    except TargetError as error:
        raise TargetError(f"{place}: {error}") from None


def calls_of(target: str, shapes: Sequence[str], kind: Kind) -> tuple[Callable[..., Any], Calls]:
    """The function to tune and the arguments of each call. Raises TargetError, with what to do, for anything else."""
    function = _function(target)
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
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise TargetError(f"{target!r} names no function; write it as FILE.py:function.")
    if not Path(file).is_file():
        raise TargetError(f"there is no file {file}; {target!r} should be FILE.py:function.")
    module = module_of(Path(file))
    function = getattr(module, name, None)
    if not callable(function):
        there = ", ".join(n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__)
        raise TargetError(f"{file} has no function {name!r}; it has {there or 'none at all'}.")
    return function


def module_of(path: Path) -> ModuleType:
    """The module that a Python file makes when it is run. Raises TargetError where there is none."""
    if not path.is_file():
        raise TargetError(f"there is no file {path}.")
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
