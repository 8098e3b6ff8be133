"""Support for programs in C: the header of their C text, and the object that runs them (program.c).

    header()                  the text that every program's C text begins with
    module()                  the launcher, ready for programs; None where there is none, with the reason in the log
    number_of(dtype)          torch's number of a dtype, by which C knows it
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from polytile.runtime import native
from polytile.runtime.arguments import DEVICES
from polytile.runtime.symbols import address_of

log = logging.getLogger("polytile")

STABLE = (
    "empty_strided", "_reinterpret_tensor", "_alloc_from_pool", "view_dtype", "new_tensor_handle", "delete_tensor_object",
    "get_dim", "get_sizes", "get_strides", "get_storage_size", "get_numel", "get_current_device_index",
)  # fmt: skip
"""Functions of torch's stable C interface, in the order of program.c's torch_functions."""

WRAP = ("_Z16THPVariable_WrapRKN2at10TensorBaseE", "_Z16THPVariable_WrapN2at10TensorBaseE")
"""THPVariable_Wrap, which makes a tensor's Python object, as mangled by different versions of torch. Either version
takes the tensor's address and may move the tensor out of it."""

DEVICE_TYPES = {name: number for number, name in DEVICES.items()}
"""torch's numbers of the device types on which programs in C allocate memory."""


@functools.cache
def header() -> str:
    """The text of program.h."""
    return Path(__file__).with_name("program.h").read_text()


def module() -> Any:
    """The launcher, able to run programs in C; None if there is no launcher, or if torch's functions cannot be found."""
    loaded = native.module()
    return loaded if loaded is not None and _prepare(loaded) else None


@functools.cache
def _prepare(loaded: Any) -> bool:
    """Has a loaded launcher run programs. Returns whether it can."""
    try:
        loaded.configure_programs(_addresses(), _allocate)
        with torch.device("cpu"), torch.inference_mode(False):
            trouble = _self_test(loaded)
    except (OSError, AttributeError, LookupError, RuntimeError) as error:
        trouble = str(error)
    if trouble:
        log.warning("torch %s: programs run by Python's wrapper, about 1 us a line, since %s.", torch.__version__, trouble)
        loaded.configure_programs((), None)
    return not trouble


def number_of(dtype: torch.dtype) -> int:
    """torch's number of a dtype. Raises LookupError for a dtype that its C interface does not know."""
    return _number_of(str(dtype).removeprefix("torch."))


def number_or(dtype: torch.dtype, unknown: int) -> int:
    """Like `number_of`, but `unknown` for a dtype that the interface does not know."""
    try:
        return number_of(dtype)
    except LookupError:
        return unknown


@functools.cache
def _number_of(name: str) -> int:
    function = getattr(native.torch_library(), f"aoti_torch_dtype_{name}", None)
    if function is None:
        raise LookupError(f"torch {torch.__version__} has no number for {name} in its C interface")
    return int(function())


def _addresses() -> tuple[int, ...]:
    library = native.torch_library()
    stable = [getattr(library, f"aoti_torch_{name}") for name in STABLE]
    python = ctypes.CDLL(native.library_path("torch_python"))
    wrap = next((getattr(python, name) for name in WRAP if hasattr(python, name)), None)
    if wrap is None:
        raise LookupError("it does not make Python objects of tensors as it used to")
    return tuple(map(address_of, (*stable, wrap)))


def _allocate(sizes: Sequence[int], strides: Sequence[int], dtype: int, device_type: int, device: int) -> torch.Tensor:
    """Called when torch's C function failed to allocate: raises the error, or succeeds."""
    kind = next(d for d in vars(torch).values() if isinstance(d, torch.dtype) and number_or(d, -1) == dtype)
    where = torch.device(DEVICES[device_type], device) if device_type else torch.device("cpu")
    return torch.empty_strided(tuple(sizes), tuple(strides), dtype=kind, device=where)


def _self_test(loaded: Any) -> str | None:
    """What is wrong with tensors made in C, or None."""
    whole, row, again = loaded.try_programs()
    if not all(type(tensor) is torch.Tensor for tensor in (whole, row, again)):
        return "what it makes of a tensor in C is no Tensor"
    whole.copy_(torch.arange(6.0).reshape(2, 3))
    address, want = whole.data_ptr(), whole.tolist()
    if (whole.shape, row.shape, again.shape) != ((2, 3), (3,), (2, 3)) or whole.dtype != torch.float32:
        return "the sizes of tensors that are made in C are wrong"
    if again.data_ptr() != address or row.data_ptr() != address + 12:
        return "the memory of tensors that are made in C is not shared"
    del whole
    if again.tolist() != want or row.tolist() != want[1]:
        return "the memory of tensors that are made in C does not live as long as they do"
    return None
