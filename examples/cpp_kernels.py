"""Chooses between a C++ kernel of one's own and a library call, at each size.

The task is vector quantisation: the squared distance of each point to its nearest centre. The C++ kernel keeps one number of
each point. The library computes a product on all cores, but writes every distance to memory. g++ compiles the C++ when the
program starts, and ctypes calls it. The program checks both, and prints what was chosen at each size, and all times.
docs/kernels.md says what `polytile.kernel` asks of its functions.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile

import torch
from torch import Tensor

import polytile

SOURCE = """
extern "C" void nearest(const float* points, const float* centres, float* out, long M, long K, long D) {
    for (long m = 0; m < M; m++) {
        float best = __builtin_inff();
        for (long k = 0; k < K; k++) {
            float sum = 0;
            for (long d = 0; d < D; d++) {
                float difference = points[m * D + d] - centres[k * D + d];
                sum += difference * difference;
            }
            best = sum < best ? sum : best;
        }
        out[m] = best;
    }
}
"""


def compiled(source: str) -> ctypes.CDLL:
    if not (compiler := shutil.which("g++") or shutil.which("clang++")):
        raise SystemExit("This example needs g++ or clang++.")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/nearest.so"
        fast = "-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"  # -ffast-math would change the process's numbers
        command = [compiler, "-O3", "-march=native", *fast, "-shared", "-fPIC", "-x", "c++", "-", "-o", path]
        subprocess.run(command, input=source, text=True, check=True)
        return ctypes.CDLL(path)


native = compiled(SOURCE).nearest
native.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3


@polytile.kernel("points[M, D], centres[K, D] -> distance[M]", reduction=["D"])
def nearest(points: Tensor, centres: Tensor, distance: Tensor, M: int, D: int, K: int) -> None:
    distance.copy_((points[:, None] - centres).square().sum(-1).amin(-1))


@nearest.implementation(version="1")  # a change of SOURCE needs another version: it is not part of this function's text
def own_cpp(points: Tensor, centres: Tensor, distance: Tensor, M: int, D: int, K: int) -> None:
    native(points.data_ptr(), centres.data_ptr(), distance.data_ptr(), M, K, D)


@nearest.implementation
def product(points: Tensor, centres: Tensor, distance: Tensor, M: int, D: int, K: int) -> None:
    squares = centres.square().sum(-1) - 2 * (points @ centres.T)
    torch.add(squares.amin(-1), points.square().sum(-1), out=distance)


if __name__ == "__main__":
    torch.manual_seed(0)
    for M, K, D in ((4, 4, 8), (64, 8, 16), (512, 64, 64), (1024, 128, 128)):
        points, centres = torch.randn(M, D), torch.randn(K, D)
        distance = torch.empty(M)
        nearest(points, centres, distance)
        torch.testing.assert_close(distance, torch.cdist(points, centres).amin(-1).square(), rtol=1e-3, atol=1e-3)
    for decision in nearest.decisions:
        times = ", ".join(f"{one.candidate} {one.seconds * 1e6:.1f} µs" for one in decision.standings if one.seconds > 0)
        print(f"{dict(decision.sizes)} -> {decision.candidate} ({times})")
