"""Locates what compiling CUTLASS templates needs: CUTLASS's headers, CUDA's headers and a compiler.

    CUTLASS   the option `cutlass`, or the package nvidia-cutlass (for its headers; nothing of it is imported)
    CUDA      the NVIDIA packages that come with PyTorch, then CUDA_HOME, then /usr/local/cuda
    compiler  NVRTC from the same places, or the nvcc named by the option `nvcc`
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from polytile import options
from polytile.errors import CompilerMissing, DeviceError
from polytile.runtime.cuda import driver

PACKAGE, INSIDE = "nvidia-cutlass", "cutlass_library/source/include"
"""The package that holds the headers, and their folder in it."""

MARK = "cutlass/version.h"
OLDEST = (3, 5)
"""The oldest CUTLASS whose collectives take the arguments that product.h passes."""

STANDARD = "cuda/std/utility"
"""A header of CUDA's C++ library."""


@dataclass(frozen=True)
class Toolkit:
    """`compiler` is libnvrtc or nvcc, `compiler_version` its version. Folders are in the order in which headers are
    searched."""

    compiler: Path
    compiler_version: str
    cutlass: Path
    cutlass_version: str
    cuda: tuple[Path, ...]

    @property
    def identity(self) -> str:
        """Everything that determines the generated code, except the text."""
        return f"CUTLASS {self.cutlass_version}, {self.compiler_version}"

    @property
    def cuda_major(self) -> int:
        """The major version of CUDA that the compiler belongs to."""
        major = re.search(r"(\d+)\.", self.compiler_version)
        return int(major[1]) if major else 0

    @property
    def includes(self) -> tuple[str, ...]:
        return tuple(map(str, (self.cutlass, *self.cuda)))


def find() -> Toolkit:
    """The installed toolkit. Raises CompilerMissing, which says what is missing and how to install it."""
    return _found(str(options.get("cutlass")), str(options.get("nvcc")), os.environ.get("CUDA_HOME", ""))


def check_driver(tools: Toolkit) -> None:
    """Raises CompilerMissing where the driver does not load what the compiler makes: machine code needs a driver of the same
    major version of CUDA, or of a later one (CUDA's minor version compatibility). Without a driver there is nothing to load."""
    try:
        version = driver.version()
    except DeviceError:
        return
    if version // 1000 < tools.cuda_major:
        raise CompilerMissing(
            f"the driver is {driver.release()}, and does not load what {tools.compiler_version} makes; update the driver, or "
            f"name an nvcc of CUDA {version // 1000} with the option `nvcc`."
        )


@functools.cache
def _found(named: str, nvcc: str, home: str) -> Toolkit:
    cutlass = _cutlass(named)
    of_cutlass = cutlass_version(cutlass)
    compiler, version = _nvcc(Path(nvcc)) if nvcc else _nvrtc(home)
    return Toolkit(compiler, version, cutlass, of_cutlass, _cuda(home, compiler))


def _cutlass(named: str) -> Path:
    """Folder of CUTLASS's headers."""
    if named:
        for folder in (Path(named), Path(named, "include"), Path(named, INSIDE)):
            if (folder / MARK).is_file():
                return folder
        raise CompilerMissing(
            f"the option `cutlass` names {named}, but there is no {MARK} in it; name the folder of CUTLASS's headers."
        )
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        folder = Path(str(importlib.metadata.distribution(PACKAGE).locate_file(INSIDE)))
        if (folder / MARK).is_file():
            return folder
    raise CompilerMissing(
        "CUTLASS's headers were not found: pip install 'polytile[cutlass]', or name their folder with the option `cutlass`."
    )


def cutlass_version(folder: Path) -> str:
    """Version of the headers in a folder, such as "4.2.0". Raises CompilerMissing if they are too old or their version
    is unknown."""
    text = (folder / MARK).read_text(errors="replace")
    numbers = re.findall(r"#define CUTLASS_(?:MAJOR|MINOR|PATCH)\s+(\d+)", text)
    if len(numbers) != 3 or tuple(map(int, numbers[:2])) < OLDEST:
        said = ".".join(numbers) or "no version"
        least = ".".join(map(str, OLDEST))
        raise CompilerMissing(f"the headers in {folder} are of CUTLASS {said}; CUTLASS {least} or newer is needed.")
    return ".".join(numbers)


def _roots(home: str) -> Iterator[Path]:
    """Candidate roots of CUDA installations, each with a folder of headers or of libraries."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield from sorted(Path(place).glob("cu[0-9]*"), reverse=True)
        yield from (Path(place, name) for name in ("cuda_nvrtc", "cuda_runtime", "cuda_cccl"))
    yield from (Path(each) for each in (home, "/usr/local/cuda") if each)


def _nvrtc(home: str) -> tuple[Path, str]:
    for root in _roots(home):
        for folder in ("lib", "lib64"):
            for path in sorted((root / folder).glob("libnvrtc.so*")):
                with contextlib.suppress(OSError):
                    return path, nvrtc_version(path)
    raise CompilerMissing(
        "NVRTC was not found; it comes with PyTorch for CUDA (nvidia-cuda-nvrtc). Or name an nvcc with the option `nvcc`."
    )


def nvrtc_version(path: Path) -> str:
    """Version of the library. Raises OSError if it cannot be loaded."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    ctypes.CDLL(str(path)).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"NVRTC {major.value}.{minor.value}"


def _nvcc(path: Path) -> tuple[Path, str]:
    import subprocess

    try:
        said = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerMissing(f"the option `nvcc` names {path}, which does not run: {error}.") from error
    release = re.search(r"release [\d.]+, V([\d.]+)", said)
    return path, f"nvcc {release.group(1) if release else 'of no known version'}"


def _cuda(home: str, compiler: Path) -> tuple[Path, ...]:
    """The folders of CUDA's headers and of its C++ library, from one installation if it has both.

    From CUDA 13 on, CUTLASS includes `cccl/cuda/std/...`, and the library itself `cuda/std/...`, so both folders are
    needed.
    """
    includes = [root / "include" for root in (*_roots(home), compiler.resolve().parent.parent)]
    own = [folder for folder in includes if (folder / "cuda_fp16.h").is_file()]
    standard = [folder for folder in includes if (folder / "cccl" / STANDARD).is_file() or (folder / STANDARD).is_file()]
    if not own or not standard:
        missing = "cuda_fp16.h (nvidia-cuda-runtime)" if not own else f"{STANDARD} (nvidia-cuda-cccl)"
        raise CompilerMissing(f"CUDA's headers were not found: there is no {missing}. Install the package, or set CUDA_HOME.")
    both = [folder for folder in own if folder in standard]
    first, library = (both or own)[0], (both or standard)[0]
    return tuple(dict.fromkeys(folder for folder in (first, library, library / "cccl") if folder.is_dir()))
