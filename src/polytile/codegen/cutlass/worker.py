"""Worker process code (runtime/cuda/worker.py): compiles CUDA C++, given as plain data, to a cubin."""

from __future__ import annotations

import base64
import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from polytile.codegen.triton.elf import resources

DEFINES = ("-DNDEBUG", "-DCUTLASS_ENABLE_TENSOR_CORE_MMA=1")
FLAGS = ("-std=c++17", "--expt-relaxed-constexpr", *DEFINES)
"""Flags of nvcc."""
RTC_FLAGS = ("-std=c++17", "-default-device", *DEFINES)

MOST_LINES = 12
"""Maximum number of lines of a compiler's messages. What follows the first errors is caused by them."""


class Rejected(Exception):
    """The compiler rejected the text, and would reject it again."""


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Compiles `source` for `arch` ("sm_90a") with `compiler`, a path to libnvrtc or nvcc, and headers from `includes`.
    The job's other entries are returned unchanged, since the launch needs them."""
    compiler = Path(job["compiler"])
    build = _by_nvrtc if compiler.name.startswith("libnvrtc") else _by_nvcc
    try:
        binary = build(compiler, job["source"], job["arch"], [f"-I{folder}" for folder in job["includes"]])
    except Rejected as error:
        return {"error": str(error), "rejected": True}
    registers, spills = resources(binary)
    passed_on = {name: job[name] for name in ("symbol", "num_warps", "shared", "descriptors")}
    return {"binary": base64.b64encode(binary).decode(), "registers": registers, "spills": spills, **passed_on}


def first_errors(messages: str) -> str:
    """The lines of the first errors, without the instantiations that lead to them."""
    lines = messages.strip().splitlines()
    errors = [number for number, line in enumerate(lines) if "error" in line]
    chosen = [line for number in errors[:3] for line in lines[number : number + 4]]
    return "\n".join((chosen or lines)[:MOST_LINES])


def _by_nvcc(compiler: Path, source: str, arch: str, includes: list[str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        text, cubin = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
        text.write_text(source)
        code = f"-gencode=arch={arch.replace('sm', 'compute')},code={arch}"
        command = [str(compiler), "-cubin", code, *FLAGS, *includes, "-o", str(cubin), str(text)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise Rejected(first_errors(done.stderr or done.stdout))
        return cubin.read_bytes()


def _by_nvrtc(compiler: Path, source: str, arch: str, includes: list[str]) -> bytes:
    library = _library(str(compiler))
    program, length = ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    try:
        given = [flag.encode() for flag in (f"--gpu-architecture={arch}", *RTC_FLAGS, *includes)]
        code = library.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
        if code != 0:
            library.nvrtcGetProgramLogSize(program, ctypes.byref(length))
            log = ctypes.create_string_buffer(length.value)
            library.nvrtcGetProgramLog(program, log)
            messages = log.value.decode(errors="replace")
            raise Rejected(first_errors(messages) or str(library.nvrtcGetErrorString(code), "ascii"))
        library.nvrtcGetCUBINSize(program, ctypes.byref(length))
        binary = ctypes.create_string_buffer(length.value)
        library.nvrtcGetCUBIN(program, binary)
        return binary.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so*")):
        ctypes.CDLL(str(builtins))  # NVRTC loads it by name, and the loader does not search NVRTC's own folder
    library = ctypes.CDLL(path)
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library
