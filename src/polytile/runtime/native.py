"""Builds, loads and tests the C launcher. Answers None where no C extension can be built or loaded, and logs why once.

The extension is compiled at first use (0.3 s, then cached) against this Python's own headers, without torch's. It reads
tensors through torch's stable C functions. It locates the at::Tensor within a tensor's Python object by searching for
the value of `tensor._cdata`, and tries the result on every kind of tensor before trusting it. If it cannot be trusted,
the extension falls back to `Tensor.data_ptr()`, which costs about 0.1 us more per tensor.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import logging
import os
import struct
import sys
import sysconfig
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from polytile import locks
from polytile.runtime import compile as compiler
from polytile.runtime.arguments import bad_count, bad_integer, slow_pointer
from polytile.runtime.symbols import address_of, addresses

log = logging.getLogger("polytile")

MODULE = "polytile_launcher"
_PARTS = (
    "formula.c keys.c table.c cuda/graphs.h trial.c fallback.c record.c launcher.c kinds.c triton_launch.c tuned_launch.c "
    "pair.c weights.c program.h arena.c program.c results.c guard_facts.c guard_memo.c entry.c door.c module.c"
)

SOURCES = tuple(Path(__file__).parent / name for name in _PARTS.split())
"""Concatenated in this order into one translation unit."""

_lock = locks.lock()


def prepare(beside_calls: bool = False) -> compiler.Compilation:
    """Starts building the extension, or finds it in the cache; returns at once. `beside_calls`: see compile_c."""
    abi = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    source = "\n".join(path.read_text() for path in SOURCES)
    told = f"-DPOLYTILE_ABI={abi}", f"-DPOLYTILE_PYTHON={sys.hexversion}"
    return compiler.compile_c("launcher", source, told, (sysconfig.get_path("include"),), beside_calls)


def module(quietly: bool = False) -> Any:
    """The loaded extension, the same object in every call; None if it cannot be built or loaded here. The first such
    call without `quietly` logs a warning."""
    with _lock:
        loaded, why = _load()
        if loaded is None and not quietly:
            _warn(why)
        return loaded


def is_ready() -> bool:
    """Whether `module` answers without waiting for a compiler. Starts the compiler if needed; its failure is reported
    by `module`."""
    try:
        return _load.cache_info().currsize > 0 or _preparation().done()
    except Exception:
        return True


@functools.cache
def _preparation() -> compiler.Compilation:
    return prepare()


os.register_at_fork(after_in_child=_preparation.cache_clear)  # the child lacks the compile thread


@functools.cache
def _warn(why: str) -> None:
    log.warning("The C launcher cannot be used, calls go through ctypes (5 us each, not 0.1): %s", why)


@functools.cache
def _load() -> tuple[Any, str]:
    """The extension and "", or None and the reason."""
    try:
        loaded = _import(prepare().result())
        with torch.device("cpu"):  # for the self-tests' tensors, whatever the program's default
            _configure(loaded)
    except Exception as error:  # any failure: calls have another way
        reason = str(error).partition("\n")[0]
        if not Path(sysconfig.get_path("include"), "Python.h").exists():
            reason = "Python's own headers are not installed (Debian, Ubuntu: apt install python3-dev)."
        return None, reason
    return loaded, ""


def reset() -> None:
    """Forgets the loaded extension; the next use builds or loads it again."""
    with _lock:
        _load.cache_clear()
        _preparation.cache_clear()
        _warn.cache_clear()


def _import(library: compiler.Library) -> ModuleType:
    """Imports the extension from its file in the cache, after checking that the file is intact."""
    path = str(compiler.verified(library).path)
    loader = ExtensionFileLoader(MODULE, path)
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    assert spec is not None
    loaded = importlib.util.module_from_spec(spec)
    loader.exec_module(loaded)
    return loaded


def _configure(loaded: Any) -> None:
    """Gives the extension its Python functions and, if it passes the self-test, the fast path to tensors."""
    functions = (slow_pointer, bad_integer, bad_count)
    try:
        offset, symbols = _handle_offset(), _torch_functions()
        loaded.configure(*functions, torch.Tensor, torch.nn.Parameter, offset, *symbols)
        trouble = _self_test(loaded)
    except (OSError, AttributeError, LookupError) as error:
        trouble = str(error)
    if trouble:
        log.warning("torch %s: tensors are read by data_ptr(), 0.1 us each, because %s.", torch.__version__, trouble)
        loaded.configure(*functions, None, None, 0, 0, 0)
        return
    for group, names in _FUNCTIONS.items():
        with contextlib.suppress(AttributeError):
            loaded.configure_functions(group, *_addresses(*names))
    try:
        with torch.inference_mode(False):
            loaded.configure_weights(_storage_offset(), _counter_offset(), _version_function())
            trouble = _weights_self_test(loaded)
    except (OSError, AttributeError, LookupError) as error:
        trouble = str(error)
    if trouble:
        log.warning("torch %s: weights are not packed, because %s.", torch.__version__, trouble)
        loaded.configure_weights(0, 0, 0)


def library_path(name: str) -> str:
    """Path of one of torch's own libraries, such as "torch_cpu" or "torch_python"."""
    return str(Path(torch.__file__).parent / "lib" / f"lib{name}.so")


def torch_library() -> ctypes.CDLL:
    """The library that holds torch's stable C interface."""
    return ctypes.CDLL(library_path("torch_cpu"))


def _torch_functions() -> tuple[int, int]:
    """Addresses of the two functions of torch's stable C interface that the fast path calls."""
    first, second = _addresses("aoti_torch_get_data_ptr", "aoti_torch_get_device_type")
    return first, second


def _addresses(*names: str) -> list[int]:
    """Addresses of functions of torch's stable C interface."""
    return addresses(torch_library(), names)


_FUNCTIONS = {
    "records": ("_ZN2at12hasCallbacksEv", "aoti_record_function_start", "aoti_record_function_end"),
    "kinds": ("aoti_torch_get_dtype", "aoti_torch_get_device_index"),
    "pairs": ("aoti_torch_empty_strided", "aoti_torch_delete_tensor_object"),
}
"""Functions of torch that some part of the launcher calls. Without `records`, profilers see no kernel (the first is
`at::hasCallbacks()`: whether anyone observes operators). Without `kinds`, Triton's own code looks up launches of autotuned
kernels. Without `pairs`, products and their epilogues are called one by one."""


def _version_function() -> int:
    """Address of `at::TensorBase::_version() const`, the count of writes to a tensor."""
    return address_of(torch_library()._ZNK2at10TensorBase8_versionEv)


def _handle_offset() -> int:
    """Offset in bytes of the at::Tensor within a tensor's Python object. Raises LookupError if it is not found."""
    size = torch.Tensor.__basicsize__
    found = _offset(size, lambda tensor: (id(tensor), tensor._cdata))
    if found is None:
        raise LookupError("a tensor's Python object does not hold the tensor where it used to")
    return found


TENSOR_HEAD = 64
"""Bytes at the start of a TensorImpl in which to search for the pointer to its storage. A TensorImpl is far larger."""


def _storage_offset() -> int:
    """Offset in bytes of the storage pointer within a TensorImpl. Raises LookupError if it is not found."""
    found = _offset(TENSOR_HEAD, lambda tensor: (tensor._cdata, tensor.untyped_storage()._cdata))
    if found is None:
        raise LookupError("a tensor does not hold its storage where it used to")
    return found


def _counter_offset() -> int:
    """Offset in bytes of the pointer to the write counter within a TensorImpl. A detached tensor shares the counter,
    `.data` does not, and an inference tensor has none. Raises LookupError if it is not found."""
    offsets = set(range(0, TENSOR_HEAD, 8))
    for tensor in (torch.zeros(2), torch.nn.Parameter(torch.zeros(2)), torch.zeros(3)[1:]):
        with torch.inference_mode():
            uncounted = torch.zeros(2)
        kinds = tensor, tensor.detach(), tensor.data, uncounted
        heads = [ctypes.string_at(kind._cdata, TENSOR_HEAD) for kind in kinds]
        own, detached, data, none = (struct.unpack(f"{TENSOR_HEAD // 8}Q", head) for head in heads)
        offsets &= {8 * i for i in range(len(own)) if own[i] == detached[i] != data[i] != 0 == none[i]}
    if len(offsets) != 1:
        raise LookupError("a tensor does not hold its counter of writes where it used to")
    return offsets.pop()


def _offset(size: int, where: Callable[[torch.Tensor], tuple[int, int]]) -> int | None:
    """The first offset in bytes at which every tensor holds the word of `where(tensor)` = (address, word), within
    `size` bytes."""
    offsets = set(range(0, size, 8))
    for tensor in (torch.zeros(2), torch.nn.Parameter(torch.zeros(2)), torch.zeros(3)[1:]):
        address, wanted = where(tensor)
        words = struct.unpack(f"{size // 8}Q", ctypes.string_at(address, size // 8 * 8))
        offsets &= {8 * i for i, word in enumerate(words) if word == wanted}
    return min(offsets, default=None)


class _Subclass(torch.Tensor):
    """Stands for every tensor subclass, including fake tensors (importing those takes 0.8 s). The fast path declines it."""


def _self_test(loaded: Any) -> str | None:
    """What is wrong with the fast path, or None. It must agree with data_ptr() or decline."""
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    taken = {
        "a contiguous tensor": base,
        "a view with a storage offset": base[1:, 2:],
        "a transposed view": base.t(),
        "a 0-dimensional tensor": base[2, 3],
        "a tensor that requires grad": torch.zeros(3, requires_grad=True),
        "a result of autograd": torch.zeros(3, requires_grad=True) * 2,
        "a Parameter": torch.nn.Parameter(base[1]),
        "a bool tensor": torch.ones(5, dtype=torch.bool),
        "a detached alias": base.detach()[3],
    }
    declined = {
        "a tensor without elements": torch.empty(0),
        "a subclass": base.as_subclass(_Subclass),
        "a meta tensor": torch.empty(2, device="meta"),
        "None": None,
        "an integer": 3,
    }
    for name, tensor in taken.items():
        if loaded.probe(tensor) != tensor.data_ptr():
            return f"the fast path misreads {name}"
    for name, value in declined.items():
        if loaded.probe(value) is not None:
            return f"the fast path takes {name}"
    return None


def _weights_self_test(loaded: Any) -> str | None:
    """What is wrong with how storages and versions are read, or None."""
    weight = torch.nn.Parameter(torch.zeros(4, 4))
    shared = weight.detach()
    replaced = torch.nn.Parameter(torch.zeros(4, 4))
    replaced.data = torch.ones(4, 4)
    for name, write in {
        "a new parameter": lambda: None,
        "a parameter that was written to": lambda: shared.add_(1),
        "a parameter whose view was written to": lambda: shared[1:].zero_(),
    }.items():
        write()
        if loaded.state_of(weight) != (weight.untyped_storage()._cdata, weight._version):
            return f"storage or version of {name} is misread"
    if loaded.state_of(replaced) != (replaced.untyped_storage()._cdata, replaced._version):
        return "a parameter with other data is misread"
    with torch.inference_mode():
        uncounted = torch.zeros(2)
    if loaded.state_of(uncounted) is not None:
        return "an inference tensor is taken for one that counts writes"
    return None
