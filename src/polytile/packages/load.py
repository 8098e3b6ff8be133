"""Packages in Python: what opens one, and makes its calls by the C runtime that it holds.

There is no compiler, no tracing and no lowering.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import zipfile
from array import array
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


WORDS = 6
"""64-bit words of DLPack's DLTensor: data; types of device and place of it; rank, code, bits and lanes; pointers to sizes and to
strides; an offset."""


class _Sentence(threading.local):
    """Room of a thread for an error's sentence."""

    def __init__(self) -> None:
        self.why = ctypes.create_string_buffer(ROOM)


_here = _Sentence()
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_lock = locks.lock()
_runtimes: dict[str, ctypes.CDLL] = {}
"""The C runtimes that are loaded, by their digests."""


def load_package(path: str | Path, *, verify: bool = False) -> Package:
    """Loads what `package` has written. Needs torch and no compiler.

    Parameters
    ----------
    path
        The file or folder.
    verify
        Whether to compare the weights, too, with their digest, which reads all of them. Everything else is always compared.

    Returns
    -------
    A Package, called as the model was.

    Raises
    ------
    PackageError
        There is no package, it is damaged, or it was made for another processor or another version of polytile.
    """
    path = Path(path)
    manifest = read_manifest(path)
    _verify(path, manifest, verify)
    return Package(path, manifest)


def _verify(path: Path, manifest: Mapping[str, Any], weights: bool) -> None:
    """Compares the package's files, with or without its weights, with the digests in the manifest."""
    for name, known in manifest["files"].items():
        if name == archive.WEIGHTS and not weights:
            continue
        sha = hashlib.sha256()
        try:
            for chunk in _chunks(path, name, manifest):
                sha.update(chunk)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise PackageError(f"the package {path} lacks its file {name}, or it is damaged ({error}). Write it again.") from None
        if sha.hexdigest() != known["sha256"]:
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
        file = os.memfd_create("polytile", os.MFD_CLOEXEC)  # it stays open: the loader tells files apart by such names
        with open(file, "wb", closefd=False) as out:
            out.write(content)
        return ctypes.CDLL(f"/proc/self/fd/{file}")
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
        self._dtypes = [getattr(torch, own["dtype"]) if own.get("dtype") else None for own in self._inputs]
        self._constants = [at for at, own in enumerate(self._inputs) if "constant" in own]
        one_by_one = pytree.tree_flatten(((0,) * len(self._inputs), {}))[1]
        self._one_by_one = self._in_spec == one_by_one and not self._constants
        """Whether a call's arguments are its inputs, each a tensor or number."""
        self._alone = self._out_spec.is_leaf() and not any("constant" in own or own["number"] for own in self._outputs)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.polytile_close(self._handle)

    def __repr__(self) -> str:
        return f"<polytile package {self.path}: {', '.join(each['name'] for each in self._inputs)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the model, in the structure that it gives them in."""
        given = self._flat(args, kwargs)
        for at in self._constants:
            value, own = given[at], self._inputs[at]
            if (type(value), value) != (type(own["constant"]), own["constant"]):
                raise PackageError(
                    f"input {own['name']!r} of the package {self.path} is {own['constant']!r}, as in the example, and cannot be "
                    f"{value!r}. Package the model again with that value."
                )
        every = zip(given, self._inputs, self._dtypes, strict=True)
        kept = [self._tensor(value, own, dtype) for value, own, dtype in every if "constant" not in own]
        words, outputs, why = packed(kept), array("q", bytes(8 * max(1, self._results))), _here.why
        inputs, room = words.buffer_info()[0], outputs.buffer_info()[0]
        status = self._library.polytile_call_on(
            self._handle, self._stream(kept), inputs, len(kept), room, self._results, why, ROOM
        )
        if status != OK:
            sentence = why.value.decode(errors="replace")
            raise torch.OutOfMemoryError(sentence) if status == MEMORY and self._device == "cuda" else ERRORS[status](sentence)
        if self._alone and outputs[0]:
            return torch.from_dlpack(_capsule(outputs[0], b"dltensor", None))
        return pytree.tree_unflatten(self._given_back(outputs), self._out_spec)

    def _stream(self, tensors: Sequence[torch.Tensor]) -> int | None:
        """The current stream of the GPU that the inputs are on."""
        if self._device != "cuda":
            return None
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        return torch.cuda.current_stream(device).cuda_stream

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """The inputs, in order."""
        plain = self._one_by_one and not kwargs and len(args) == len(self._inputs)
        if plain and all(isinstance(value, torch.Tensor) for value in args):
            return args
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

    def _tensor(self, value: Any, own: Mapping[str, Any], dtype: torch.dtype | None) -> torch.Tensor:
        name = own["name"]
        if dtype is None:
            if type(value) is not int:
                raise PackageError(f"input {name!r} of the package {self.path} has to be an integer; it is {_kind(value)}.")
            return torch.tensor(value)
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            raise PackageError(f"input {name!r} of the package {self.path} has to be a dense tensor; it is {_kind(value)}.")
        if value.dtype is not dtype or value.ndim != len(own["shape"]) or value.device.type != self._device:
            raise PackageError(
                f"input {name!r} of the package {self.path} has to be {own['dtype']}[{', '.join(own['shape'])}] on "
                f"{self._device}; it is {_kind(value)}."
            )
        if value.is_conj() or value.is_neg():
            value = value.detach().resolve_conj().resolve_neg()
        return _in_order(value, own["order"]) if value.is_cuda else value

    def _given_back(self, outputs: Any) -> list[Any]:
        left = iter(outputs)
        results: list[Any] = []
        for own in self._outputs:
            if "constant" in own:
                results.append(own["constant"])
                continue
            managed = next(left)
            result = None if not managed else torch.from_dlpack(_capsule(managed, b"dltensor", None))
            results.append(int(result) if own["number"] and result is not None else result)
        return results


def _in_order(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """The tensor, copied if it is not dense with its dimensions in this order."""
    lying = value.permute(tuple(order))
    if lying.is_contiguous():
        return value
    back = sorted(range(len(order)), key=lambda dimension: order[dimension])
    return lying.contiguous().permute(back)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
    return f"a {type(value).__name__}"


def packed(tensors: Sequence[torch.Tensor]) -> array[int]:
    """What C takes tensors by, in one array of 64-bit words.

    Returns
    -------
    array
        A pointer to a DLPack DLTensor for each tensor, then the DLTensors, then their sizes and strides in elements. The
        pointers are valid as long as the array and the tensors exist.
    """
    count = len(tensors)
    words = array("q", bytes(8 * (1 + count + sum([WORDS + 2 * tensor.ndim for tensor in tensors]))))
    start = words.buffer_info()[0]
    behind = count + WORDS * count
    for at, tensor in enumerate(tensors):
        rank, kind, place = tensor.ndim, tensor.dtype, count + WORDS * at
        code = CODES.get(kind, 2 if kind.is_floating_point else 0)
        words[at] = start + 8 * place
        words[place] = tensor.data_ptr()
        words[place + 1] = 2 | tensor.get_device() << 32 if tensor.is_cuda else 1
        words[place + 2] = rank | code << 32 | kind.itemsize << 43 | 1 << 48  # bits are bytes times eight; one lane
        words[place + 3], words[place + 4] = start + 8 * behind, start + 8 * (behind + rank)
        words[behind : behind + 2 * rank] = array("q", (*tensor.shape, *tensor.stride()))
        behind += 2 * rank
    return words
