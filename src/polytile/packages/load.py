"""Packages in Python: what opens one, and makes its calls by the C runtime that it holds.

There is no compiler, no tracing and no lowering.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from polytile import locks
from polytile.errors import DeviceError, PackageError
from polytile.packages import archive
from polytile.packages.manifest import read_manifest

ROOM = 2048
"""Bytes of an error's sentence."""

CODES = {torch.bool: 6, torch.uint8: 1, torch.bfloat16: 4, torch.complex32: 5, torch.complex64: 5, torch.complex128: 5}
"""DLPack's codes of element types that are neither integers (0) nor plain floating-point numbers (2)."""

OK, REFUSED, INDEX, ASSERTION, MEMORY, DEVICE = range(6)
"""What polytile_call returns (polytile_package.h)."""

ERRORS: Mapping[int, type[Exception]] = {
    REFUSED: PackageError, INDEX: IndexError, ASSERTION: RuntimeError, MEMORY: MemoryError,
    DEVICE: DeviceError,
}  # fmt: skip


class _Tensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_lock = locks.lock()
_runtimes: dict[str, ctypes.CDLL] = {}
"""The C runtimes that are loaded, by their digests."""


def load_package(path: str | Path, *, verify: bool = False) -> Package:
    """See `polytile.load_package`."""
    path = Path(path)
    manifest = read_manifest(path)
    _verify(path, manifest, verify)
    return Package(path, manifest)


def _verify(path: Path, manifest: Mapping[str, Any], weights: bool) -> None:
    """Compares the package's files, with or without its weights, with the digests in the manifest."""
    for name, known in manifest["files"].items():
        if name == archive.WEIGHTS and not weights:
            continue
        found = hashlib.sha256()
        try:
            for chunk in _chunks(path, name, manifest):
                found.update(chunk)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise PackageError(f"the package {path} lacks its file {name}, or it is damaged ({error}). Write it again.") from None
        if found.hexdigest() != known["sha256"]:
            raise PackageError(f"the package {path}: its file {name} is not the one that was written. Write it again.")


def _chunks(path: Path, name: str, manifest: Mapping[str, Any]) -> Any:
    if name == archive.WEIGHTS and manifest["weights_apart"]:
        apart = Path(f"{path}{archive.APART}")
        return archive.chunks_of(apart.parent, apart.name)
    return archive.chunks_of(path, name)


def _runtime(path: Path, manifest: Mapping[str, Any]) -> ctypes.CDLL:
    """The C runtime of a package; those of equal digests are one."""
    digest = manifest["files"][archive.RUNTIME]["sha256"]
    with _lock:
        if digest not in _runtimes:
            _runtimes[digest] = _declared(_loaded(archive.read(path, archive.RUNTIME), path))
        return _runtimes[digest]


def _loaded(content: bytes, path: Path) -> ctypes.CDLL:
    try:
        if hasattr(os, "memfd_create"):
            file = os.memfd_create("polytile", os.MFD_CLOEXEC)  # it stays open: the loader tells files apart by such names
            with open(file, "wb", closefd=False) as out:
                out.write(content)
            return ctypes.CDLL(f"/proc/self/fd/{file}")
        with tempfile.NamedTemporaryFile(suffix=".so") as out:
            out.write(content)
            out.flush()
            return ctypes.CDLL(out.name)
    except OSError as error:
        raise PackageError(
            f"the runtime of the package {path} cannot be loaded here: {error}. Write the package on such a system."
        ) from None


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    library.polytile_open.restype = ctypes.c_void_p
    library.polytile_open.argtypes = ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t
    library.polytile_close.restype, library.polytile_close.argtypes = None, (ctypes.c_void_p,)
    library.polytile_outputs.argtypes = (ctypes.c_void_p,)
    library.polytile_call_on.argtypes = (
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p,
        ctypes.c_size_t,
    )  # fmt: skip
    return library


class Package:
    """A loaded package: called as the model was, under no gradient. Any number of threads may call.

    Inputs are tensors in the processor's memory or, of a package for GPUs, in that of one GPU, on whose current stream the call
    runs; of the element types and sizes that the package was made for. One whose strides are not those of the example is copied
    first. Results share no memory with inputs or weights. Raises PackageError, a ValueError, for inputs that do not fit,
    IndexError for an index out of range (on a GPU in a later call), RuntimeError for an assertion that fails, and DeviceError
    where a GPU refuses.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any]) -> None:
        self.path, self.manifest = path, manifest
        self._in_spec, self._out_spec = (pytree.treespec_loads(manifest[name]) for name in ("in_spec", "out_spec"))
        self._inputs: Sequence[Mapping[str, Any]] = manifest["inputs"]
        self._outputs: Sequence[Mapping[str, Any]] = manifest["outputs"]
        self._library = _runtime(path, manifest)
        why = ctypes.create_string_buffer(ROOM)
        self._handle = self._library.polytile_open(os.fsencode(path), why, ROOM)
        if not self._handle:
            raise PackageError(why.value.decode(errors="replace"))
        self._results = self._library.polytile_outputs(self._handle)
        self._device: str = manifest["device"]

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.polytile_close(self._handle)

    def __repr__(self) -> str:
        return f"<polytile package {self.path}: {', '.join(each['name'] for each in self._inputs)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the model, in the structure that it gives them in."""
        given = self._flat(args, kwargs)
        for value, own in zip(given, self._inputs, strict=True):
            if "constant" in own and (type(value), value) != (type(own["constant"]), own["constant"]):
                raise PackageError(
                    f"input {own['name']!r} of the package {self.path} is {own['constant']!r}, as in the example, and cannot be "
                    f"{value!r}. Package the model again with that value."
                )
        kept = [self._tensor(value, own) for value, own in zip(given, self._inputs, strict=True) if "constant" not in own]
        structs = [_struct(tensor) for tensor in kept]
        inputs = (ctypes.c_void_p * max(1, len(structs)))(*(ctypes.addressof(struct) for struct in structs))
        outputs = (ctypes.c_void_p * max(1, self._results))()
        why = ctypes.create_string_buffer(ROOM)
        given_to = self._handle, self._stream(kept), inputs, len(structs), outputs, self._results, why, ROOM
        status = self._library.polytile_call_on(*given_to)
        if status != OK:
            sentence = why.value.decode(errors="replace")
            raise torch.OutOfMemoryError(sentence) if status == MEMORY and self._device == "cuda" else ERRORS[status](sentence)
        return pytree.tree_unflatten(self._given_back(outputs), self._out_spec)

    def _stream(self, tensors: Sequence[torch.Tensor]) -> int | None:
        """The current stream of the GPU that the inputs are on."""
        if self._device != "cuda":
            return None
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        return torch.cuda.current_stream(device).cuda_stream

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec == self._in_spec:
            return leaves
        left = dict(kwargs)
        named = [left.pop(name) for name in self.manifest["parameters"][len(args) :] if name in left]
        wanted = self._in_spec.unflatten([None] * self._in_spec.num_leaves)[1]
        ordered = {name: left.pop(name) for name in wanted if name in left}
        leaves, spec = pytree.tree_flatten(((*args, *named), {**ordered, **left}))
        if spec != self._in_spec:
            names = ", ".join(each["name"] for each in self._inputs)
            raise PackageError(
                f"the package {self.path} is called as its model was with the example inputs ({names}): {self._in_spec}. "
                f"The call has {spec}."
            )
        return leaves

    def _tensor(self, value: Any, own: Mapping[str, Any]) -> torch.Tensor:
        name, dtype = own["name"], own.get("dtype")
        if dtype is None:
            if type(value) is not int:
                raise PackageError(f"input {name!r} of the package {self.path} has to be an integer; it is {_kind(value)}.")
            return torch.tensor(value)
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            raise PackageError(f"input {name!r} of the package {self.path} has to be a dense tensor; it is {_kind(value)}.")
        if value.device.type != self._device or str(value.dtype) != f"torch.{dtype}" or value.ndim != len(own["shape"]):
            raise PackageError(
                f"input {name!r} of the package {self.path} has to be {dtype}[{', '.join(own['shape'])}] on {self._device}; it "
                f"is {_kind(value)}."
            )
        value = value.detach().resolve_conj().resolve_neg()
        return _in_order(value, own["order"]) if value.is_cuda else value

    def _given_back(self, outputs: Any) -> list[Any]:
        left = iter(outputs)
        found: list[Any] = []
        for own in self._outputs:
            if "constant" in own:
                found.append(own["constant"])
                continue
            managed = next(left)
            result = None if managed is None else torch.from_dlpack(_capsule(managed, b"dltensor", None))
            found.append(int(result) if own["number"] and result is not None else result)
        return found


def _in_order(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """The tensor, copied if its dimensions do not lie one within the other in this order and without gaps."""
    lying = value.permute(tuple(order))
    if lying.is_contiguous():
        return value
    back = sorted(range(len(order)), key=lambda dimension: order[dimension])
    return lying.contiguous().permute(back)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
    return f"a {type(value).__name__}"


def _struct(tensor: torch.Tensor) -> _Tensor:
    rank, kind = tensor.ndim, tensor.dtype
    numbers = (ctypes.c_int64 * max(1, 2 * rank))(*tensor.shape, *tensor.stride())
    shape = ctypes.cast(numbers, ctypes.POINTER(ctypes.c_int64))
    strides = ctypes.cast(ctypes.byref(numbers, 8 * rank), ctypes.POINTER(ctypes.c_int64))
    code = CODES.get(kind, 2 if kind.is_floating_point else 0)
    where = (2, tensor.get_device()) if tensor.is_cuda else (1, 0)
    made = _Tensor(tensor.data_ptr(), *where, rank, code, kind.itemsize * 8, 1, shape, strides, 0)
    made.keep = numbers
    return made
