"""The C text of a package's program.so: the program's function, and as data all that runtime.c needs to run it (tables.h)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sympy
import torch

from polytile.candidates.handles import DeviceHandle, MachineCode, NativeHandle, Portable, ProductHandle
from polytile.compiler.programs import Scheduled
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.packaged import Leaf, PackagedTable
from polytile.errors import PackageError
from polytile.ir.buffer import Buffer
from polytile.ir.program import Program
from polytile.packages.weights import Weights
from polytile.runtime import native, program
from polytile.runtime.cuda import cublaslt, launch
from polytile.runtime.cuda.products import Operand
from polytile.runtime.weights import Site
from polytile.wrapper import Line, c_numbers, cpp, lines, python
from polytile.wrapper.arguments import argument_lines

ABI = 2
"""The format of tables.h, as its PACKAGE_ABI."""

MOST_DIMENSIONS = 64
LARGEST = 1 << 62
"""A size that is at most this is not bounded."""


HEADERS = (
    "dlfcn.h errno.h fcntl.h limits.h pthread.h stdarg.h stdint.h stdio.h stdlib.h string.h "
    "sys/mman.h sys/stat.h sys/utsname.h unistd.h"
)
"""What runtime.c includes."""


@functools.cache
def _part(name: str) -> str:
    here = Path(__file__).parent / name
    return (here if here.exists() else Path(native.__file__).parent / name).read_text()


def runtime_source() -> str:
    """The C text of what opens packages and makes their calls, complete."""
    includes = "\n".join(f"#include <{head}>" for head in HEADERS.split())
    parts = f"formula.c keys.c program.h arena.c {' '.join(DATA)} polytile_package.h gpu.c package.c on_gpu.c runtime.c"
    return "\n".join([f"#define _GNU_SOURCE\n{includes}\n", *map(_part, parts.split())])


DATA = ("cuda/launch.h", "cuda/product.h", "tables.h")
"""What declares the data of program.so."""


def header() -> str:
    """The text of polytile_package.h, for programs in C and C++."""
    return _part("polytile_package.h")


@dataclass(frozen=True)
class PackagedKernel:
    """A kernel of the program, its table, and the code of each leaf."""

    multikernel: MultiKernel
    table: PackagedTable
    handles: tuple[Mapping[int, Portable], ...]
    """By the architecture of GPUs; 0: it has none, it is a processor's or a library's."""


@dataclass(frozen=True)
class Content:
    """The contents of program.so beyond its function: paths of the shared objects and images of GPU code, by the names of their
    files in the package; the architectures of GPUs, and the paths of what launches and multiplies there."""

    kernels: Sequence[PackagedKernel]
    libraries: Mapping[str, str]
    images: Mapping[str, bytes]
    features: Sequence[str]
    machine: str
    weights: Weights
    architectures: tuple[int, ...] = ()
    launcher: str = ""
    multiplier: str = ""

    @property
    def places(self) -> Places:
        """The numbers by which the tables know the files."""
        return Places(
            {path: place for place, path in enumerate(self.libraries.values())},
            {image: place for place, image in enumerate(self.images.values())},
            {id(kernel.multikernel): place for place, kernel in enumerate(self.kernels)},
        )


@dataclass(frozen=True)
class Places:
    """Numbers of shared objects by their paths, of images by their content, and of kernels."""

    libraries: Mapping[str, int]
    images: Mapping[bytes, int]
    kernels: Mapping[int, int]


class PackageWriter(cpp.UnitWriter):
    """Writes a program's lines for runtime.c: what calls Python elsewhere is done at once, or refused with a PackageError."""

    def __init__(self, scheduled: Scheduled, bounds: Mapping[str, tuple[int, int]]) -> None:
        self.program = scheduled.program
        self.lines = all_lines = _with_all_sizes(scheduled.program, scheduled.lines, bounds)
        super().__init__(all_lines, python.Text(scheduled.program.name))
        self.sites = {id(call.site.find): call.site for _, call in scheduled.calls if call.site is not None}
        self.multikernels = {id(multikernel.dispatch): multikernel for multikernel, _ in scheduled.calls}
        self.used: list[MultiKernel] = []
        """The kernels by their numbers in the text."""
        self.held: dict[str, torch.Tensor] = {}
        """The constants by their names, in order of their numbers."""
        self.outputs = 0
        self._reason = ""
        for line in all_lines:
            self.write(line)

    def accept(self) -> None:
        """Compares the inputs with the sizes that they imply before anything is done with them."""
        self.accepted = True  # what is written here needs no acceptance
        for item in self.program.inputs:
            if item.buffer is not None:
                buffer = self.program.buffers[item.buffer]
                self.do(f"api->expect(f, {self.tensor(buffer.name)}, {self.layout(buffer)})")
        self.accepted = False
        super().accept()

    def comment(self, line: lines.Comment) -> None:
        self._reason = line.text

    def define_kernel(self, line: lines.DefineKernel) -> None:
        super().define_kernel(line)
        self.used.append(self.multikernels[id(line.run)])

    def constant(self, line: lines.Constant) -> None:
        self._hold(line.name, line.value)

    def _hold(self, name: str, value: torch.Tensor) -> None:
        super().constant(lines.Constant(name, value))
        self.held[name] = value

    def make_view(self, line: lines.MakeView) -> None:
        super().make_view(replace(line, alias=False))

    def find_packed_weight(self, line: lines.FindPackedWeight) -> None:
        """The copy is made now, and held beside the weight. Raises PackageError for a weight that is no constant of the
        program."""
        site, weight = self.sites[id(line.find)], self.held.get(line.weight)
        if weight is None:
            raise PackageError(f"the program looks up a copy of {line.weight!r}, which is no constant of the program.")
        self._hold(line.name, _packed(site, weight))
        if line.symbol is not None:
            self.add(f"const int64_t {self.symbol(line.symbol)} = 1;")

    def call_library(self, line: lines.CallLibrary) -> None:
        operator, _, reason = self._reason.partition(" (library: ")
        why = f" ({reason.removesuffix(')')})" if reason else ""
        raise PackageError(
            f"the program cannot be packaged: {line.target} is a call of torch's library{why}, and packages hold generated "
            f"kernels alone, so that they run without torch. It came from {operator or line.target}. Leave that operator out of "
            "the packaged part, or write it by others that polytile generates (docs/conformance.md lists them)."
        )

    def python(self, text: str, names: Sequence[str], result: str | None) -> None:
        raise PackageError(
            f"the program cannot be packaged: it computes {text} from sizes, which is no integer. Pass the number as a tensor."
        )

    def python_number(self, text: str, names: Sequence[str], variable: str) -> None:
        raise PackageError(f"the program cannot be packaged: its size {text} has no form in C.")

    def return_(self, line: lines.Return) -> None:
        self.outputs = len(line.values)
        super().return_(line)

    # the text --------------------------------------------------------------------------------------------------------

    def program_source(self, content: Content) -> str:
        """The C text of program.so."""
        places = content.places
        kernels = [_kernel(kernel, places) for kernel in content.kernels]
        constants = [_constant(name, value, content.weights) for name, value in self.held.items()]
        fields = {
            "abi": str(ABI),
            "machine": _string(content.machine),
            "features": _string(f" {' '.join(content.features)} "),
            "device_type": "2" if content.architectures else "1",
            "inputs": str(self.arguments),
            "outputs": str(self.outputs),
            "tensors": str(len(self.tensors)),
            "memories": str(self.memories),
            "constants": str(len(constants)),
            "kernels": str(len(kernels)),
            "libraries": str(len(content.libraries)),
            "images": str(len(content.images)),
            "input": _array("PackagedInput", map(self._input, self.program.inputs)),
            "constant": _array("PackagedConstant", constants),
            "kernel": _array("PackagedKernel", kernels),
            "library": _array("char *const", map(_string, content.libraries)),
            "image": _array("char *const", map(_string, content.images)),
            "launcher": str(places.libraries.get(content.launcher, "NO_LIBRARY")),
            "multiplier": str(places.libraries.get(content.multiplier, "NO_LIBRARY")),
            "cublaslt": _string(cublaslt.soname() if content.multiplier else ""),
            "errors": _array("PackagedError", [f"{{{_status(kind)}, {_string(message)}}}" for kind, message in self.errors]),
            "run": cpp.FUNCTION,
        }
        head = [program.header(), c_numbers.PRELUDE, *map(_part, DATA), self.function()]
        return "\n".join([*head, f"const PackagedProgram polytile_packaged_program = {_struct(fields)};", ""])

    def _input(self, item: Any) -> str:
        if item.buffer is None:
            return f"{{{_string(item.name)}, 4, 0}}"
        buffer: Buffer = self.program.buffers[item.buffer]
        return f"{{{_string(item.name)}, {program.number_of(buffer.dtype)}, {len(buffer.sizes)}}}"


def _with_all_sizes(given: Program, all_lines: Sequence[Line], bounds: Mapping[str, tuple[int, int]]) -> list[Line]:
    """The lines with every symbol of the inputs bound, not those alone that something reads, and held against its bounds."""
    body = list(all_lines)
    first = next(place for place, line in enumerate(body) if isinstance(line, lines.TakeArguments))
    after = first
    while isinstance(body[after], lines.TakeArguments | lines.ReadSize | lines.BindSize):
        after += 1
    counts = iter(range(len(all_lines) + MOST_DIMENSIONS * len(given.inputs)))
    arguments = argument_lines(given, lambda prefix: f"given_{prefix}{next(counts)}")
    bound = {line.symbol for line in arguments if isinstance(line, lines.ReadSize | lines.BindSize)}
    bound |= {item.size for item in given.inputs if isinstance(item.size, sympy.Symbol)}
    checks = [check for symbol in sorted(bound, key=str) for check in _bounds_of(symbol, given, bounds)]
    return [*body[:first], *arguments, *checks, *body[after:]]


def _bounds_of(symbol: sympy.Symbol, given: Program, bounds: Mapping[str, tuple[int, int]]) -> Iterable[lines.CheckSizes]:
    low, high = bounds.get(str(symbol), (0, LARGEST))
    least, most = sympy.Ge(symbol, low), sympy.Le(symbol, high) if high < LARGEST else sympy.true
    limits = f"{low} or more" + (f", and {high} or less" if high < LARGEST else "")
    condition = sympy.And(least, most)
    if condition != sympy.true:
        text = f"{_place_of(symbol, given)} has to be {limits}. Package the model again for others (dynamic_shapes=)."
        yield lines.CheckSizes(condition, text, PackageError)


def _place_of(symbol: sympy.Symbol, given: Program) -> str:
    """Where callers meet a size."""
    for item in given.inputs:
        if item.size == symbol:
            return f"input {item.name!r}"
        if item.buffer is not None and symbol in given.buffers[item.buffer].sizes:
            return f"the size of input {item.name!r} in dimension {given.buffers[item.buffer].sizes.index(symbol)}"
    return f"the dynamic size {symbol}"


def _status(kind: type[Exception]) -> str:
    """What a call returns for an error of this kind."""
    if issubclass(kind, PackageError):
        return "1"
    return "2" if issubclass(kind, IndexError) else "3"


def _packed(site: Site, weight: torch.Tensor) -> torch.Tensor:
    recipe = site.recipe
    return recipe.make(weight.as_strided(recipe.sizes, recipe.strides, weight.storage_offset() + recipe.offset))


# data in C ------------------------------------------------------------------------------------------------------------


def _string(text: str) -> str:
    return '"' + "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode()) + '"'


def _array(kind: str, items: Iterable[str]) -> str:
    listed = list(items)
    return f"(const {kind}[]){{{', '.join(listed)}}}" if listed else "0"


def _numbers(kind: str, values: Iterable[int]) -> str:
    return _array(kind, map(str, values))


def _struct(fields: Mapping[str, str]) -> str:
    return "{" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "}"


def _constant(name: str, value: torch.Tensor, weights: Weights) -> str:
    extents, strides = _numbers("int64_t", value.shape), _numbers("int64_t", value.stride())
    layout = f"{{{value.ndim}, {extents}, {strides}, {program.number_of(value.dtype)}}}"
    return f"{{{weights.offset(name)}, {weights.size(name)}, {layout}}}"


def _kernel(packaged: PackagedKernel, places: Places) -> str:
    spec, table = packaged.multikernel.spec, packaged.table
    keys = spec.keys
    leaves = [_leaf(leaf, handle, places) for leaf, handle in zip(table.leaves, packaged.handles, strict=True)]
    formulas = [_numbers("int64_t", condition.formula) for condition in spec.conditions]
    return _struct({
        "name": _string(spec.name),
        "tensors": str(len(spec.args)),
        "integers": str(len(spec.size_codes)),
        "fields": str(len(keys.fields((0,) * len(spec.size_codes)))),
        "codes": _numbers("unsigned char", spec.size_codes),
        "tensor_codes": _numbers("unsigned char", spec.tensor_codes),
        "formula_count": str(len(formulas)),
        "formulas": _array("int64_t *const", formulas),
        "leaf_count": str(len(leaves)),
        "leaves": _array("PackagedLeaf", leaves),
        "decided": _rows(table.decided),
        "cells": _rows(table.cells),
        "has_exact_sizes": str(int(any(map(keys.is_exact_size, table.decided)))),
        "anywhere_count": str(len(table.anywhere)),
        "anywhere": _numbers("unsigned short", table.anywhere),
        "check_count": str(len(spec.checks)),
        "checks": _array("char *const", map(_string, spec.checks)),
    })  # fmt: skip


def _leaf(leaf: Leaf, handles: Mapping[int, Portable], places: Places) -> str:
    fields, builds = {"library": "NO_LIBRARY", "core": "NO_LIBRARY", "then": "NO_KERNEL"}, []
    for architecture, handle in handles.items():
        match handle:
            case NativeHandle():
                fields |= _native(handle, places.libraries)
            case DeviceHandle():
                builds.append(_build(handle, architecture, places))
            case ProductHandle():
                fields |= {"product": f"&(const ProductPlan){_product(handle)}", "element_bytes": str(handle.element_bytes)}
                fields |= {"then": str(places.kernels[id(handle.then)])} if handle.then is not None else {}
    fields |= {"build_count": str(len(builds)), "builds": _array("PackagedBuild", builds)}
    facts = [number for fact in leaf.facts for number in fact]
    return _struct({**fields, "fact_count": str(len(leaf.facts)), "facts": _numbers("int64_t", facts)})


def _native(handle: NativeHandle, libraries: Mapping[str, int]) -> dict[str, str]:
    bind, slot, core, symbol = handle.bind or ("", 0, "", "")
    return {
        "library": str(libraries[handle.path]),
        "symbol": _string(handle.symbol),
        "threads": str(handle.threads),
        "core": str(libraries[core]) if core else "NO_LIBRARY",
        "bind": _string(bind),
        "core_symbol": _string(symbol),
        "slot": str(slot),
    }


def _build(handle: DeviceHandle, architecture: int, places: Places) -> str:
    codes = [f"{{{places.images[one.function.image]}, {_string(one.function.symbol)}}}" for one in handle.launches]
    reports = any(kind == launch.ERROR_WORD for one in handle.launches for kind, _ in one.parameters)
    scratch = [f"{{{_numbers('int64_t', one.bytes)}, {int(one.zeroed)}}}" for one in handle.scratch]
    return _struct({
        "architecture": str(architecture),
        "launch_count": str(len(handle.launches)),
        "scratch_count": str(len(scratch)),
        "reports": str(int(reports)),
        "launches": _array("Launch", map(_launch, handle.launches)),
        "codes": _array("PackagedCode", codes),
        "scratch": _array("Scratch", scratch),
    })  # fmt: skip


def _launch(one: launch.Launch[MachineCode]) -> str:
    return _struct({
        "grid": "{" + ", ".join(_numbers("int64_t", axis) for axis in one.grid) + "}",
        "parameters": _array("Parameter", [f"{{{kind}, {index}}}" for kind, index in one.parameters]),
        "descriptors": _array("Descriptor", map(_descriptor, one.descriptors)),
        "count": str(len(one.parameters)),
        "threads": str(one.threads),
        "shared": str(one.shared),
        "overlaps": str(int(one.overlaps)),
        "cluster": str(one.cluster),
    })  # fmt: skip


def _descriptor(one: launch.Descriptor) -> str:
    return _struct({
        "sizes": "{" + ", ".join(_numbers("int64_t", size) for size in reversed(one.shape)) + "}",
        "strides": "{" + ", ".join(_numbers("int64_t", stride) for stride in reversed(one.strides)) + "}",
        "tensor": str(one.tensor),
        "type": str(one.type),
        "bytes": str(one.bytes),
        "swizzle": str(one.swizzle),
        "rank": str(len(one.shape)),
        "block": "{" + ", ".join(map(str, reversed(one.block))) + "}",
    })  # fmt: skip


def _product(handle: ProductHandle) -> str:
    product = handle.product
    whole = product.compute == cublaslt.COMPUTE_32I
    return _struct({
        "fastest_at": "{" + ", ".join(str(handle.fastest_at.get(name, -1)) for name in ("batch", "M", "N", "K")) + "}",
        "most_workspace": str(cublaslt.MOST_WORKSPACE),
        "operands": "{" + ", ".join(map(_operand, product.operands)) + "}",
        "bias": str(-1 if product.bias is None else product.bias),
        "compute": str(product.compute),
        "scale": str(cublaslt.TYPES[torch.int32 if whole else torch.float32]),
        "rank": str(handle.rank),
        "integers": str(product.integers),
    })  # fmt: skip


def _operand(operand: Operand | None) -> str:
    if operand is None:
        return "{.tensor = -1}"
    strides = "{" + ", ".join(_numbers("int64_t", stride) for stride in operand.strides) + "}"
    return _struct({"strides": strides, "tensor": str(operand.tensor), "type": str(cublaslt.TYPES[operand.dtype])})


def _rows(rows: Mapping[tuple[int, ...], tuple[int, ...]]) -> str:
    items = [
        f"{{{_numbers('int64_t', key)}, {len(leaves)}, {_numbers('unsigned short', leaves)}}}"
        for key, leaves in sorted(rows.items())
    ]
    return f"{{{len(items)}, {_array('PackagedRow', items)}}}"

