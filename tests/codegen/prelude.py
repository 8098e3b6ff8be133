"""Builds small translation units on the C++ prelude and calls them through ctypes."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polytile.codegen.cpp.prelude import parts_of, prelude

FLAGS = "-O2 -std=c++17 -fPIC -shared -fno-math-errno -fno-trapping-math".split()
X86 = sys.platform == "linux" and Path("/proc/cpuinfo").exists() and " avx2 " in Path("/proc/cpuinfo").read_text()
TARGETS = [("native", 16), *([("x86-64-v3", 8), ("x86-64", 4)] if X86 else [])]
Array = np.ndarray[Any, Any]

BINARY = """\
#define FN2(f) extern "C" void f##_TT(const TT* x, const TT* z, TT* y, long n) {           \\
  long i = 0;                                                                                \\
  for (; i + L <= n; i += L) store(y + i, f(load<TT, L>(x + i), load<TT, L>(z + i)));        \\
  if (i < n) store_n(y + i, f(load_n<TT, L>(x + i, n - i), load_n<TT, L>(z + i, n - i)), n - i); \\
}
"""


def builder(folder: Path) -> Callable[..., ctypes.CDLL]:
    """build(source, march, lanes) -> the loaded library; each is built once, in `folder`."""
    made: dict[tuple[str, str, int], ctypes.CDLL] = {}

    def make(source: str, march: str = "native", lanes: int = 16) -> ctypes.CDLL:
        key = (source, march, lanes)
        if key not in made:
            path = folder / f"k{len(made)}.cpp"
            text = f"using namespace pt;\nconstexpr int L = {lanes};\n{source}"
            path.write_text(prelude(parts_of(text)) + text)
            command = ["g++", *FLAGS, f"-march={march}", str(path), "-o", str(path.with_suffix(".so"))]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[:3000]
            made[key] = ctypes.CDLL(str(path.with_suffix(".so")))
        return made[key]

    return make


def pointer(x: Array | torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr())


def call(library: ctypes.CDLL, name: str, *arrays: Array | torch.Tensor, n: int | None = None) -> None:
    """Calls name(pointers..., n); n is the length of the first array."""
    count = len(arrays[0]) if n is None else n
    getattr(library, name)(*(pointer(a) for a in arrays), ctypes.c_long(count))


def named(name: str, text: str) -> str:
    return f"{name}: {text}"


def same(y: torch.Tensor, want: torch.Tensor, what: str) -> None:
    """Equal bit for bit, but that one NaN is as good as another."""
    torch.testing.assert_close(y, want, rtol=0, atol=0, equal_nan=True, msg=partial(named, what))


def float_samples(step: int) -> Array:
    """Every step-th float by its bits, dense stretches where functions turn, and the edges."""
    bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 1e-45, -1e-45, 1.1754944e-38, 3.4e38, -3.4e38]
    edges += [88.72283, 88.7229, 89.4, -87.33655, -103.9, -104.1, 127.99999, 128, -149, -150.1, 10.05, 10.06, 9.02]
    edges += [0.75, 1.5, 0.99999994, 1.0000001, 1e5, 100001]
    dense = [np.linspace(-20, 20, 50001), np.linspace(-1.01, 1.01, 50001), np.linspace(0.5, 2, 50001), np.array(edges)]
    return np.concatenate([bits.view(np.float32), *(d.astype(np.float32) for d in dense)])
