"""AMD GPUs through the same driver interface as NVIDIA's: a library with the driver's function names, implemented by
HIP.

It is compiled at first use (hip.c), so driver.py, launch.c and the worker that tries kernels work unchanged on ROCm.
Tested with a stand-in for HIP's library; it has not run on a device.
"""

from __future__ import annotations

import ctypes.util
from pathlib import Path

from polytile.runtime import compile as compiler
from polytile.runtime import pytorch

NAME = "libamdhip64.so"
SOURCE = Path(__file__).with_name("hip.c")


def present() -> bool:
    """Whether this PyTorch was built for ROCm, which calls AMD GPUs "cuda"."""
    return pytorch.hip() is not None


def runtime() -> str:
    """HIP's library: the one that comes with PyTorch, else the one that the system finds, possibly under a versioned name."""
    brought = pytorch.folder() / "lib" / NAME
    return str(brought) if brought.exists() else ctypes.util.find_library("amdhip64") or NAME


def library() -> str:
    """Path of the compiled library. Raises CompilerMissing, CompileFailed or CacheError if it cannot be made."""
    path = runtime().replace("\\", "\\\\").replace('"', '\\"')
    source = f'#define HIP_LIBRARY "{path}"\n{SOURCE.read_text()}'
    return str(compiler.compile_c("hip_driver", source, ("-ldl",)).result().path)
