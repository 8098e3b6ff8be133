"""AMD's GPUs through the same driver interface as NVIDIA's: a library with the driver's names whose functions are HIP's.

It is compiled at first use (hip.c), so that driver.py, launch.c and the worker that tries kernels need no other form of
themselves on ROCm. Tested with a stand-in for HIP's library; it has not run on a device.
"""

from __future__ import annotations

import ctypes.util
from pathlib import Path

from polytile.runtime import compile as compiler
from polytile.runtime import pytorch

NAME = "libamdhip64.so"
SOURCE = Path(__file__).with_name("hip.c")


def present() -> bool:
    """Whether this PyTorch is a build for ROCm, which calls AMD's GPUs "cuda"."""
    return pytorch.hip() is not None


def runtime() -> str:
    """HIP's library: the one that PyTorch brings, else whichever the system finds, under a version's name too."""
    brought = pytorch.folder() / "lib" / NAME
    return str(brought) if brought.exists() else ctypes.util.find_library("amdhip64") or NAME


def library() -> str:
    """The file of the compiled library. Raises CompilerMissing, CompileFailed or CacheError where it cannot be made."""
    path = runtime().replace("\\", "\\\\").replace('"', '\\"')
    source = f'#define HIP_LIBRARY "{path}"\n{SOURCE.read_text()}'
    return str(compiler.compile_c("hip_driver", source, ("-ldl",)).result().path)
