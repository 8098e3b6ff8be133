"""Writes packages: captures a module, chooses kernels for the sizes of its calls, and puts all of it into one file."""

from __future__ import annotations

import itertools
import json
import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from polytile import options as settings
from polytile import waits
from polytile.candidates.handles import DeviceHandle, NativeHandle, Portable, ProductHandle
from polytile.compiler.programs import Scheduled, program_name, schedule_program
from polytile.compiler.stored import calls_at
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.packaged import Leaf, Met, PackagedTable, packaged_table
from polytile.errors import DeviceError, PackageError
from polytile.frontend import hints as hinted
from polytile.ir import sizes
from polytile.ir.buffer import Buffer
from polytile.ir.template import IS_PACKED
from polytile.packages import archive, text
from polytile.packages.archive import Content
from polytile.packages.capture import Captured, capture, exported
from polytile.packages.load import load_package
from polytile.packages.manifest import FORMAT
from polytile.packages.text import PackagedKernel, PackageWriter
from polytile.packages.weights import Weights
from polytile.runtime import compile as compiling
from polytile.runtime import native, regime, toolchain
from polytile.runtime.cuda import device as gpus
from polytile.runtime.cuda import launch, products
from polytile.runtime.cuda.device import DeviceFacts
from polytile.runtime.target import Target
from polytile.version import __version__
from polytile.wrapper.footprint import Footprints

PROGRAM_FLAGS = ("-O1",)
LARGEST_SIZE = 1 << 14
"""The largest size that kernels are chosen for where the program does not bound a size; above it the kernels serve that are right
at all sizes."""

MOST_COMBINATIONS = 96
"""Combinations of sizes for which kernels are chosen, at most."""


def package(
    model: Callable[..., Any] | ExportedProgram,
    args: Sequence[Any],
    path: str | Path,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    hints: Any = None,
    weights_apart: bool = False,
    folder: bool = False,
    check: bool = True,
    architectures: Sequence[int] = (),
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a model to one file that runs on a CPU or an NVIDIA GPU without a compiler and tracing, and from C++ without Python.

    docs/packages.md says what can be packaged. Within the bounds of `dynamic_shapes` the kernels run that measurements or
    predictions show to be the fastest. At other sizes a kernel runs that is right at all sizes.

    Parameters
    ----------
    model
        A function or module, what `polytile.compile` made of one, or an exported program (torch.export), whose `args` may be
        empty.
    args, kwargs
        Example inputs. Sizes of 0 and 1 among them are taken to be constants.
    path
        The file to write; an earlier one is replaced.
    dynamic_shapes
        As in torch.export.export. None lets every size vary that can.
    hints
        Sizes, in elements, for which kernels are measured now, as in `compile`.
    weights_apart
        Whether the weights are a file of their own, `path` with ".safetensors" behind it.
    folder
        Whether to write a folder of files in place of one file.
    check
        Whether to call the package on the example inputs, and to compare its results with eager's.
    architectures
        Compute capabilities (80 for 8.0) of other NVIDIA GPUs than this one on which a model on a GPU is to run too.
    options
        Values of `polytile.options` while kernels are generated and chosen.

    Returns
    -------
    `path`.

    Raises
    ------
    PackageError
        The model has no form as a package, the file cannot be written, or its results are not eager's.
    OptionError, HintError, CompilerMissing
        As in `compile`; a compiler is needed.

    Examples
    --------
    >>> import os, tempfile, torch, polytile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = polytile.package(torch.nn.Softmax(-1), (torch.randn(4, 100),), os.path.join(folder.name, "softmax.ptp"))
    >>> run = polytile.load_package(path)
    >>> run(torch.zeros(2, 100)).sum(-1)
    tensor([1., 1.])
    """
    path, given = Path(path), settings.check(options or {}, "options= of polytile.package")
    with waits.during(f"packaging {path}"), settings.override(**given), torch.no_grad():
        toolchain.require()
        program = exported(model, args, kwargs, dynamic_shapes)
        captured = capture(program, program_name("packaged"))
        wanted = hinted.combinations(hinted.checked(hints), captured.traced, True)
        scheduled = schedule_program(captured.lowered, captured.traced, wanted)
        writer = PackageWriter(scheduled, captured.bounds)
        devices = _devices(captured.device, architectures)
        kernels = _kernels(writer.used, scheduled, captured, wanted, devices)
        content = _content(kernels, Weights(writer.held), devices)
        binary = compiling.compile_c("packaged_program", writer.program_source(content), PROGRAM_FLAGS).result()
        runtime = compiling.compile_c("package_runtime", text.runtime_source(), ("-lpthread", "-ldl")).result()
        files = {archive.PROGRAM: Content.of(binary.path.read_bytes()), archive.RUNTIME: Content.of(runtime.path.read_bytes())}
        files |= {name: Content.of(Path(library).read_bytes()) for name, library in content.libraries.items()}
        files |= {name: Content.of(image) for name, image in content.images.items()}
        weights = content.weights
        manifest = {**_manifest(captured, content), "memory": _memory(writer, [captured.traced, *wanted])}
        _write(path, files, Content(weights.bytes, weights.chunks), manifest, weights_apart, folder)
        if check:
            _check(path, program, args, kwargs)
    return path


def _write(
    path: Path, files: dict[str, Content], weights: Content, manifest: dict[str, Any], apart: bool, folder: bool
) -> None:
    all_files = {**files, archive.WEIGHTS: weights}
    digests = {name: {"bytes": content.size, "sha256": content.digest()} for name, content in all_files.items()}
    document = json.dumps({**manifest, "weights_apart": apart, "files": digests}, indent=1).encode()
    files = {archive.MANIFEST: Content.of(document), **files}
    try:
        if apart:
            archive.write_file(Path(f"{path}{archive.APART}"), weights)
        else:
            files[archive.WEIGHTS] = weights
        (archive.write_folder if folder else archive.write_archive)(path, files)
    except OSError as error:
        raise PackageError(f"the package {path} cannot be written: {error.strerror or error}.") from error


# kernels --------------------------------------------------------------------------------------------------------------


def _kernels(
    used: Iterable[MultiKernel], scheduled: Scheduled, captured: Captured, wanted: Sequence[hinted.Values],
    devices: Sequence[DeviceFacts],
) -> list[PackagedKernel]:
    """The program's kernels with their tables. Raises PackageError for one that has no portable form."""
    grid = [captured.traced, *wanted, *_grid(captured)]
    met = {multikernel: _met(multikernel, scheduled, grid) for multikernel in used}
    tables: dict[MultiKernel, PackagedTable] = {}
    left = [*met]
    while left:
        multikernel = left.pop(0)
        tables[multikernel] = table = _table(multikernel, met[multikernel], devices)
        for leaf, device in itertools.product(table.leaves, devices[1:]):
            leaf.candidate.prepare_for(device)
        for inner, calls in itertools.chain.from_iterable(_inner(leaf, met[multikernel]).items() for leaf in table.leaves):
            known = {call.ints for call in met.setdefault(inner, [])}
            if added := [call for call in calls if call.ints not in known]:
                met[inner] += added
                left.append(inner)
    for multikernel, table in tables.items():
        _check_forms(multikernel, table, devices)
    forms = {kernel: tuple(_forms(leaf, devices) for leaf in table.leaves) for kernel, table in tables.items()}
    return [PackagedKernel(kernel, table, forms[kernel]) for kernel, table in tables.items()]


def _met(multikernel: MultiKernel, scheduled: Scheduled, grid: Sequence[hinted.Values]) -> list[Met]:
    """The program's calls of a kernel at these sizes."""
    own = [call for call in scheduled.calls if call[0] is multikernel]
    fixed = [_fixed(multikernel, call) for _, call in own]
    met = dict.fromkeys((ints, place) for values in grid for place, (_, ints) in enumerate(calls_at(own, values)))
    return [Met(ints, fixed[place]) for ints, place in met]


def _inner(leaf: Leaf, calls: Sequence[Met]) -> dict[MultiKernel, list[Met]]:
    """The calls of kernels that a leaf makes itself, one behind a product."""
    inner = leaf.form.then if isinstance(leaf.form, ProductHandle) else None
    if not isinstance(inner, MultiKernel):
        return {}
    names = set(inner.spec.size_names)
    pairs = [(met, tuple(ints)) for met in calls for _, ints in leaf.candidate.inner_calls(met.ints)]
    own = {ints: Met(ints, {name: n for name, n in met.fixed.items() if name in names}) for met, ints in pairs}
    return {inner: list(own.values())}


def _table(multikernel: MultiKernel, calls: Sequence[Met], devices: Sequence[DeviceFacts]) -> PackagedTable:
    table = packaged_table(multikernel, calls, devices[1:]) if calls else None
    if table is None:
        spec = multikernel.spec
        raise PackageError(
            f"the program cannot be packaged: kernel {spec.name!r} ({', '.join(spec.source_ops)}) has no generated form for all "
            f"sizes; its candidates are {', '.join(multikernel.names[:8])}. Narrow the sizes by dynamic_shapes=, allow more "
            "sources by the option sources, or leave the operator out of the packaged part."
        )
    return table


def _devices(device: torch.device, architectures: Sequence[int]) -> list[DeviceFacts]:
    """The GPU, and one of each other architecture; none for a CPU. Raises PackageError."""
    if device.type == "cpu":
        if architectures:
            raise PackageError("architectures= are those of GPUs, and the model is on a CPU. Move it to a GPU.")
        return []
    own = Target.of(device).facts
    try:
        return [own, *(gpus.of_capability(each) for each in dict.fromkeys(architectures) if each != own.capability)]
    except DeviceError as error:
        raise PackageError(f"the program cannot be packaged for architectures={tuple(architectures)}: {error}") from None


def _forms(leaf: Leaf, devices: Sequence[DeviceFacts]) -> dict[int, Portable]:
    """The code of a leaf, by architecture where it is a GPU's."""
    form = leaf.form
    if not isinstance(form, DeviceHandle):
        return {0: form}
    others = {device.capability: leaf.candidate.portable_to(device) for device in devices[1:]}
    return {devices[0].capability: form, **{capability: other for capability, other in others.items() if other is not None}}


def _check_forms(multikernel: MultiKernel, table: PackagedTable, devices: Sequence[DeviceFacts]) -> None:
    """Raises PackageError where no kernel runs at all sizes on GPUs of some other architecture."""
    last = [table.leaves[number] for number in table.anywhere]
    for device in devices[1:]:
        if not any(isinstance(_forms(leaf, devices).get(device.capability), DeviceHandle) for leaf in last):
            spec = multikernel.spec
            raise PackageError(
                f"the program cannot be packaged: kernel {spec.name!r} ({', '.join(spec.source_ops)}) has no generated form for "
                f"all sizes on GPUs of architecture {device.capability}. Leave that architecture out, or the operator."
            )


def _fixed(multikernel: MultiKernel, call: Any) -> dict[str, int]:
    """The integers that a call always passes, by name."""
    names = multikernel.spec.size_names
    packed = {IS_PACKED: sympy.Integer(1)} if call.packed_weight is not None else {}
    given = [size.xreplace(packed) for size in call.sizes]
    return {name: int(size) for name, size in zip(names, given, strict=True) if size.is_Integer}


def _grid(captured: Captured) -> Iterator[hinted.Values]:
    """Sizes half an octave apart within the bounds of each symbol, and those that have cells of their own; fewer where there are
    many symbols."""
    steps = {symbol: _steps(*captured.bounds.get(str(symbol), (2, LARGEST_SIZE)), every=1) for symbol in captured.traced}
    every = 1
    while math.prod(len(own) for own in steps.values()) > MOST_COMBINATIONS and every < 16:
        every *= 2
        steps = {symbol: _steps(*captured.bounds.get(str(symbol), (2, LARGEST_SIZE)), every=every) for symbol in captured.traced}
    for values in itertools.product(*steps.values()):
        yield dict(zip(steps, values, strict=True))


def _steps(low: int, high: int, every: int) -> list[int]:
    low, high = max(1, low), max(1, min(high, max(low, LARGEST_SIZE)))
    powers = (round(2 ** (power / 2)) for power in range(0, 2 * high.bit_length(), every))
    near = (*powers, *range(1, regime.EXACT_UP_TO + 1, every))
    return sorted({low, high, *(size for size in near if low < size < high)})


def _content(kernels: Sequence[PackagedKernel], weights: Weights, devices: Sequence[DeviceFacts]) -> text.Content:
    """What the package of these kernels holds."""
    forms = [form for kernel in kernels for handles in kernel.handles for form in handles.values()]
    native = [form for form in forms if isinstance(form, NativeHandle)]
    paths = [path for form in native for path in (form.path, *([form.bind[2]] if form.bind is not None else []))]
    images = [one.function.image for form in forms if isinstance(form, DeviceHandle) for one in form.launches]
    launcher = str(launch.prepare().result().path) if images else ""
    multiplier = str(products.prepare().result().path) if any(isinstance(form, ProductHandle) for form in forms) else ""
    libraries = dict.fromkeys(path for path in (*paths, launcher, multiplier) if path)
    return text.Content(
        kernels,
        {f"kernels/{place}.so": path for place, path in enumerate(libraries)},
        {f"kernels/{place}.cubin": image for place, image in enumerate(dict.fromkeys(images))},
        toolchain.features() if native else (),  # the program itself is compiled for any processor of the kind
        platform.machine(),
        weights,
        tuple(device.capability for device in devices),
        launcher,
        multiplier,
    )


# what people and load.py read -----------------------------------------------------------------------------------------


def _manifest(captured: Captured, content: text.Content) -> dict[str, Any]:
    program = captured.lowered.program
    buffers = {item.name: program.buffers[item.buffer] for item in program.inputs if item.buffer is not None}
    inputs = [
        {
            "name": given.name,
            **({"constant": _plain(given.constant)} if given.is_constant else {}),
            **(_described(buffers[given.name], captured) if given.name in buffers else {}),
        }
        for given in captured.given
    ]
    results = [{"constant": _plain(r.constant)} if r.is_constant else {"number": r.is_number} for r in captured.results]
    return {
        "format": FORMAT,
        "polytile": __version__,
        "torch": torch.__version__,
        "device": captured.device.type,
        "architectures": list(content.architectures),
        "machine": content.machine,
        "features": list(content.features),
        "compiler": toolchain.find().version,
        "inputs": inputs,
        "outputs": results,
        "sizes": {str(symbol): captured.bounds.get(str(symbol), (2, None)) for symbol in captured.traced},
        "parameters": list(captured.parameters),
        "in_spec": pytree.treespec_dumps(captured.in_spec),
        "out_spec": pytree.treespec_dumps(captured.out_spec),
        "kernels": [
            {
                "name": kernel.multikernel.spec.name,
                "operators": list(kernel.multikernel.spec.source_ops),
                "forms": sorted({leaf.candidate.name for leaf in kernel.table.leaves}),
                "decisions": sorted(set(kernel.table.decisions)),
            }
            for kernel in content.kernels
        ],
    }


def _memory(writer: PackageWriter, given: Sequence[hinted.Values]) -> dict[str, Any] | None:
    """The program's memories at these sizes (docs/report.md); None where the launcher, which places them, cannot be built."""
    if native.module(quietly=True) is None:
        return None
    program = writer.program
    held = Footprints(writer.lines, {i.name: program.buffers[i.buffer] for i in program.inputs if i.buffer is not None})
    at = {tuple(sorted((str(symbol), value) for symbol, value in values.items())): held.at(values) for values in given}
    return {
        "calls": list(held.calls),
        "memories": [[memory.name, memory.first, memory.last] for memory in held.memories],
        "at": [{"sizes": dict(values), **vars(planned)} for values, planned in at.items()],
    }


def _described(buffer: Buffer, captured: Captured) -> dict[str, Any]:
    """`order`: the dimensions, the one whose elements are farthest apart first."""
    strides = [sizes.evaluate(stride, captured.traced) for stride in buffer.strides]
    order = sorted(range(len(strides)), key=lambda dimension: -strides[dimension])
    return {"dtype": str(buffer.dtype).removeprefix("torch."), "shape": [str(size) for size in buffer.sizes], "order": order}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise PackageError(
        f"the program takes or gives the constant {value!r}, for which packages have no form. Close over it instead."
    )


def _check(path: Path, program: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> None:
    """Calls the package on the example inputs. Raises PackageError where eager gives something else."""
    if not args and not kwargs and program.example_inputs is not None:
        args, kwargs = program.example_inputs
    want = program.module()(*args, **(kwargs or {}))
    got = load_package(path)(*args, **(kwargs or {}))
    for place, (one, other) in enumerate(zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True)):
        if isinstance(other, torch.Tensor):
            loose = {torch.float16: 1e-2, torch.bfloat16: 3e-2}.get(other.dtype, 1e-3)
            try:
                torch.testing.assert_close(one, other, rtol=loose, atol=loose, equal_nan=True)
            except AssertionError as error:
                raise PackageError(
                    f"result {place} of the package {path} is not eager's on the example inputs; do not use it, and please "
                    f"report this. {error}"
                ) from error
