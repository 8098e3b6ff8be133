"""`polytile doctor`: each thing polytile depends on, what was found, and advice where it is missing or unwell.

A finding is "ok", "fair" (polytile works, with less) or "bad" (it does not work, or not safely).
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from polytile import options
from polytile.errors import DeviceError, PolytileError
from polytile.report import Table
from polytile.runtime import pytorch as torch_facts
from polytile.runtime.cuda import gpus
from polytile.version import __version__

Verdict = Literal["ok", "fair", "bad"]
ORDER: tuple[Verdict, ...] = ("ok", "fair", "bad")
MINIMUM_TORCH = (2, 11)
NEEDED = {
    "numpy": "statistics and random inputs need numpy",
    "sympy": "symbolic sizes need sympy",
}
"""Packages beside PyTorch, and what needs them. typer and rich are there, or this command would not run."""

PROBE = """
extern "C" long polytile_probe(void* const* ptrs, const long* sizes, long threads) { return sizes[0] * threads; }
"""


@dataclass(frozen=True)
class Finding:
    """The subject of an examination, the verdict, a description of what was found, and advice (empty if none is needed)."""

    subject: str
    verdict: Verdict
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Findings:
    """All findings in the order in which they were looked for."""

    findings: tuple[Finding, ...]

    def table(self) -> Table:
        rows = [(finding.subject, finding.verdict, finding.found) for finding in self.findings]
        notes = [f"{finding.subject}: {finding.advice}" for finding in self.findings if finding.advice]
        return Table.from_rows(f"polytile {__version__}", ["subject", "verdict", "found"], rows, notes)


def worst(findings: Findings) -> Verdict:
    """The worst verdict among the findings."""
    return max((finding.verdict for finding in findings.findings), key=ORDER.index)


def python() -> Finding:
    """Which Python and system this process has."""
    return Finding("Python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def pytorch() -> Finding:
    """Whether PyTorch is there and new enough. It is not imported, which takes seconds."""
    least = ".".join(map(str, MINIMUM_TORCH))
    try:
        release = torch_facts.release()
    except (ImportError, OSError) as trouble:
        return Finding("PyTorch", "bad", "none", f"{str(trouble).rstrip('.')}; install PyTorch {least} or newer (https://pytorch.org).")
    if tuple(int(part) for part in release.split("+")[0].split(".")[:2]) < MINIMUM_TORCH:
        return Finding("PyTorch", "bad", release, f"polytile needs PyTorch {least} or newer; upgrade it.")
    return Finding("PyTorch", "ok", f"{release}, {torch_facts.torch_threads()} threads")


def packages() -> Finding:
    """Whether what polytile imports can be imported."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return Finding("packages", "ok", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in NEEDED))
    advice = f"install {', '.join(missing)}; {'; '.join(NEEDED[name] for name in missing)}."
    return Finding("packages", "bad", f"{', '.join(missing)} missing", advice)


def backend() -> Finding:
    """Whether torch.compile(backend="polytile") finds the backend without an import of polytile."""
    names = {entry.name for entry in importlib.metadata.entry_points(group="torch_dynamo_backends")}
    if "polytile" in names:
        return Finding("torch.compile backend", "ok", 'backend="polytile" is registered')
    return Finding(
        "torch.compile backend",
        "fair",
        "not registered as an entry point",
        'import polytile before torch.compile(..., backend="polytile"), or install the package (make setup).',
    )


def processor() -> Finding:
    """The processor's model, the cores that this process may use, and the caches."""
    from polytile.runtime.cpu import cache_sizes, cpu, usable_cores

    caches = ", ".join(f"{name} {size >> 10} KiB" for name, size in cache_sizes().items())
    return Finding("processor", "ok", f"{cpu().model}, {usable_cores()} cores" + (f", {caches}" if caches else ""))


def compiler() -> Finding:
    """Finds the C++ compiler, then compiles, loads and calls a kernel with it."""
    from polytile.errors import CompilerMissing
    from polytile.runtime import compile as service
    from polytile.runtime import toolchain

    try:
        tools = toolchain.require()
        library = service.compile_cpp("doctor_probe", PROBE, openmp=False).result()
        address = library.address("polytile_probe")
    except CompilerMissing as trouble:
        return Finding("C++ compiler", "fair", "none; every operator runs as a library call", str(trouble))
    except PolytileError as trouble:
        return Finding("C++ compiler", "bad", "it does not make a kernel that loads", str(trouble))
    kernel = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.POINTER(ctypes.c_long), ctypes.c_long)(address)
    answer = kernel(None, (ctypes.c_long * 1)(21), 2)
    described = f"{tools.version}, {tools.isa}"
    if answer != 42:
        return Finding("C++ compiler", "bad", described, f"a kernel made with it returned {answer} in place of 42.")
    took = "from the cache" if library.cached else f"in {library.seconds:.2f} s"
    return Finding("C++ compiler", "ok", f"{described}; a kernel compiled {took}, loaded and ran")


def accelerator() -> Finding:
    """The GPUs that torch sees, and whether what kernels for them need is there. Only where there is a driver is torch imported
    and asked."""
    if not gpus.drivers():
        return Finding("GPU", "ok", "none; kernels are for the processor")
    import torch

    from polytile.candidates.triton import triton_version
    from polytile.report.environment import accelerator as described
    from polytile.runtime.cuda import cublaslt, hip

    if torch.cuda.is_available():
        if triton_version() == "none":
            return Finding("GPU", "fair", described(), "Triton is not installed: pip install 'polytile[gpu]'.")
        try:
            libraries = f"Triton {triton_version()}"
            if not hip.present():
                version = cublaslt.version()
                libraries += f", cuBLASLt {version // 10000}.{version // 100 % 100}"
            return Finding("GPU", "ok", f"{described()}, {libraries}")
        except DeviceError as error:
            return Finding("GPU", "fair", described(), str(error))
    if Path("/proc/driver/nvidia/version").exists():
        advice = "the driver is there, but this PyTorch sees no GPU; install a build with CUDA (make setup does)."
        return Finding("GPU", "fair", "none that PyTorch can use", advice)
    return Finding("GPU", "ok", "none; kernels are for the processor")


def cutlass() -> Finding:
    """What CUTLASS's kernels are compiled from, and by what. They are optional."""
    from polytile.errors import CompilerMissing
    from polytile.runtime.cuda import cutlass as toolkit

    try:
        tools = toolkit.find()
        toolkit.check_driver(tools)
    except CompilerMissing as trouble:
        asked = bool(options.get("cutlass") or options.get("nvcc"))
        return Finding("CUTLASS", "fair" if asked else "ok", "none; its kernels take no part", str(trouble))
    cuda = " and ".join(map(str, tools.cuda))
    return Finding("CUTLASS", "ok", f"{tools.identity} ({tools.compiler}); headers in {tools.cutlass}, CUDA's in {cuda}")


def cache() -> Finding:
    """Where polytile keeps things, how much is there, and whether it is the place that was asked for."""
    from polytile.runtime import cache as service

    if not options.get("persist"):
        return Finding("cache directory", "ok", "none: the option persist is off")
    asked = service.within(options.cache_dir())
    in_force = service.directory()
    if in_force != asked:
        advice = f"make {asked} writable for you and for nobody else, or set POLYTILE_CACHE_DIR to another directory."
        return Finding("cache directory", "fair", f"{asked} cannot be used; nothing outlives the process", advice)
    files, size, damaged = contents(in_force)
    described = f"{in_force}: {files} files, {size / 2**20:.1f} MiB"
    if damaged:
        advice = "damaged files were set aside as *.bad; look at them or delete them. Is the disk sound?"
        return Finding("cache directory", "fair", f"{described}, {damaged} set aside", advice)
    return Finding("cache directory", "ok", described)


def contents(directory: Path) -> tuple[int, int, int]:
    """Files below `directory`, their bytes together, and how many of them were set aside as damaged."""
    files = size = damaged = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                size += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:  # another process tidied up
                continue
            files += 1
            damaged += name.endswith(".bad")
    return files, size, damaged


def store() -> Finding:
    """Where measurements are kept, how many there are, and whether they can be read."""
    from polytile.cli.plain import store_at
    from polytile.store import schema
    from polytile.store.reading import reading

    if not options.get("persist"):
        return Finding("store", "ok", "none: the option persist is off")
    try:
        place = store_at(None)
        if isinstance(place, Path) and not place.exists():
            return Finding("store", "ok", f"{place}: nothing measured yet")
        with reading(place) as reader:
            ((held,),) = reader.rows(schema.COUNTS["measurements"])
    except PolytileError as trouble:
        return Finding("store", "fair", "it cannot be read; programs measure again", str(trouble))
    return Finding("store", "ok", f"{place}: {held} measurements")


def settings() -> Finding:
    """Options that the environment sets, and variables that look like options but are not."""
    unknown = options.unknown_variables()
    try:
        values = [f"{o.name}={_said(o.name, options.get(o.name))}" for o in options.TABLE if o.variable in os.environ]
    except PolytileError as trouble:
        return Finding("options", "bad", "the environment sets one to a value it does not take", str(trouble))
    given = ", ".join(values) or "defaults"
    if unknown:
        advice = f"the environment sets {', '.join(unknown)}, but polytile has no such option."
        return Finding("options", "fair", given, advice)
    return Finding("options", "ok", given)


def _said(name: str, value: object) -> object:
    """A value as it may be shown: the address of a store without its password."""
    from polytile.store.place import place_of

    return place_of(str(value)) if name == "store" and value else value


EXAMINATIONS: tuple[Callable[[], Finding], ...] = (
    python,
    pytorch,
    packages,
    backend,
    processor,
    compiler,
    accelerator,
    cutlass,
    cache,
    store,
    settings,
)


def examine() -> Findings:
    """Looks at everything in EXAMINATIONS."""
    return Findings(tuple(examination() for examination in EXAMINATIONS))
