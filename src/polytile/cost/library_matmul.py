"""Predicted time of the library's products on a GPU.

Its kernels have tiles and split-K like generated ones, and it chooses among them well. So the prediction is the best one
(prior.py) for the tiles below, times a factor for each kind of product. Operands of 8 bits have tiles and constants of their
own.

The factors are geometric means over 74 products on an H100 (parts `square` and `thin` of `benchmarks.gpu.gemm`). The logarithm of
measured over predicted time deviates by 0.16 for square products of 16-bit dtypes, 0.08 for float32, 0.18 for TF32 and 0.09 for
few rows. Known wrong: at 1536 x 1536 x 1536 in bfloat16 the library takes 0.7 times the predicted time; of a proposal of
cuBLASLt's only its rank is known, though a later one may take half as long (485 x 704 x 11584 int8).
"""

from __future__ import annotations

from collections.abc import Mapping

from polytile.cost import triton_matmul as prior
from polytile.cost.product_constants import LIBRARY_FLOAT8, LIBRARY_INT8
from polytile.matmul.triton.configs import Kind
from polytile.problem import Config
from polytile.runtime.cuda.device import DeviceFacts


def _config(m: int, n: int, k: int, stages: int, warps: int, splits: int) -> Config:
    variant = "split" if splits > 1 else "tile"
    return Config.of(variant=variant, splits=splits, m=m, n=n, k=k, stages=stages, warps=warps, group=8)


SPLITS = (2, 4, 8, 16)
TENSOR = (
    (128, 256, 64, 3, 8), (128, 128, 64, 4, 8), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4), (64, 32, 128, 4, 4), (16, 64, 128, 4, 4),
)  # fmt: skip
PLAIN = ((128, 128, 32, 2, 8), (64, 128, 32, 3, 8), (64, 64, 32, 3, 4), (32, 32, 64, 3, 4), (16, 64, 64, 3, 4))
BLOCKS = {
    plain: (*[_config(*row, 1) for row in rows], *[_config(64, 64, 32 if plain else 64, 3, 4, splits) for splits in SPLITS])
    for plain, rows in ((True, PLAIN), (False, TENSOR))
}
"""Configs without tensor cores (True) and with them (False)."""

BYTES = (
    *(_config(m, n, 128, stages, warps, 1) for m, n, _, stages, warps in TENSOR),
    *(_config(64, 64, 128, 4, 4, splits) for splits in SPLITS),
    *(_config(128, 128, 128, 4, 8, splits) for splits in SPLITS[:3]),
)  # fmt: skip
"""Those for 8-bit operands, with constants fitted to 546 times of 78 products on an H200 (benchmarks/gpu/unseen_products.py).
Scales by rows have kernels of their own, WHOLE: blocks of 64 by 64 and more, without splits."""
WHOLE = tuple(config for config in BYTES if config["variant"] == "tile" and min(int(config["m"]), int(config["n"])) >= 64)

FACTOR, PLAIN_FACTOR, TF32_FACTOR = 1.15, 0.93, 1.58
MISALIGNED = 5.0
"""Slowdown of the library for 16-bit dtypes if rows are not 16-byte aligned: the median over the measured products of more than 8
µs. float32 is unaffected."""


def cost(
    kind: Kind,
    size: Mapping[str, int],
    device: DeviceFacts,
    along_k: tuple[bool, bool],
    misaligned: bool = False,
    scaled: bool = False,
) -> float:
    """Predicted seconds of one call. `along_k`: whether the rows of A, and of B, run along k in memory; `scaled`: the result is
    scaled by rows and columns."""
    accesses = prior.Access(along_k=along_k[0]), prior.Access(along_k=along_k[1])
    if kind.itemsize == 1:
        own = LIBRARY_FLOAT8 if kind.float8 else LIBRARY_INT8
        return min(prior.cost(kind, config, size, device, accesses, own) for config in (WHOLE if scaled else BYTES))
    plain = kind.itemsize == 4 and not kind.tf32
    factor = PLAIN_FACTOR if plain else TF32_FACTOR if kind.itemsize == 4 else FACTOR
    seconds = factor * min(prior.cost(kind, config, size, device, accesses) for config in BLOCKS[plain])
    fixed = device.launch_seconds
    return fixed + MISALIGNED * max(0.0, seconds - fixed) if misaligned else seconds
