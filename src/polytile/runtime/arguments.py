"""Argument conversion off the launchers' fast path, and the errors for arguments they reject.

The C and Python launchers share these functions, so that they accept and reject the same arguments.
"""

from __future__ import annotations

import operator
import sys
from typing import Any, NoReturn

import torch

from polytile.errors import InvalidInput

_LONG = 1 << 63


CPU, CUDA = 0, 1
"""torch's numbers of device types (DeviceType)."""

DEVICES = {CPU: "cpu", CUDA: "cuda"}


def slow_pointer(name: str, position: int, argument: Any, device: int = CPU) -> int:
    """Address of a tensor's first element on a device of type `device`; 0 for None and for an empty tensor.

    Accepts any tensor that owns memory, including subclasses. Raises TypeError if the argument is not a tensor, and
    InvalidInput for a fake tensor, a tensor on another device, or a wrapper without data.
    """
    if argument is None:
        return 0
    what = f"kernel {name!r}: argument {position} is a {type(argument).__name__}"
    if not isinstance(argument, torch.Tensor):
        raise TypeError(f"{what}; a tensor or None goes there.")
    if _is_fake(argument):
        raise InvalidInput(f"{what} without data; a compiled kernel runs on real tensors only.")
    if argument.device.type != DEVICES[device]:
        made_for = "the CPU" if device == CPU else "CUDA"
        raise InvalidInput(f"{what} on device {argument.device}; this kernel was compiled for {made_for}.")
    try:
        pointer = int(argument.data_ptr())
    except RuntimeError as error:
        raise InvalidInput(f"{what} that has no memory to point to ({error}); pass a plain tensor.") from error
    if pointer == 0 and argument.numel() != 0:
        raise InvalidInput(f"{what} that wraps other tensors or whose storage was freed; pass a plain tensor.")
    return pointer


def _is_fake(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


def integer(name: str, position: int, argument: Any) -> int:
    """`argument` as a signed 64-bit int. Raises as `bad_integer` does."""
    try:
        value = operator.index(argument)
    except TypeError:
        bad_integer(name, position, argument)
    if not -_LONG <= value < _LONG:
        bad_integer(name, position, argument)
    return value


def bad_integer(name: str, position: int, argument: Any) -> NoReturn:
    """Raises TypeError for a non-integer, OverflowError for an integer that does not fit 64 bits."""
    if isinstance(argument, int):
        raise OverflowError(f"kernel {name!r}: argument {position} is {argument}; it must fit a signed 64-bit integer.")
    raise TypeError(f"kernel {name!r}: argument {position} is a {type(argument).__name__}; an integer goes there.")


def bad_count(name: str, tensors: int, integers: int, given: int) -> NoReturn:
    """Raises TypeError: `given` arguments instead of `tensors` (-1: any number) tensors and `integers` integers."""
    due = f"{tensors} tensors and then " if tensors >= 0 else "its tensors and then "
    raise TypeError(f"kernel {name!r} takes {due}{integers} integers; {given} arguments were given.")
