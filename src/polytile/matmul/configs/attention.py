"""Configs of flex attention: the defaults, and those tried in tuning.

`capability` is 90 for 9.0, and 0 for devices that are not NVIDIA's. `head_dim` counts elements. Dtypes have torch's names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from polytile.matmul.configs import spaces
from polytile.matmul.configs.heuristic import Heuristic
from polytile.matmul.configs.records import Flex, FlexDecode, FlexDefault, RocmFlex, RocmFlexDecode

WIDE_HEAD = 256
SHORT_SHARED_MEMORY = (86, 89)
"""Capabilities with 100 KiB of shared memory per multiprocessor, where three stages of 64x64 tiles do not fit."""


def forward(heuristic: Heuristic, dtype: str, head_dim: int, capability: int) -> Flex:
    """The table's row for this dtype and head size with the highest capability up to the device's, or else a plain tile."""
    rows = [row for row in heuristic.tables.get("flex_forward_default", ()) if isinstance(row, FlexDefault)]
    fitting = [r for r in rows if (r.dtype, r.head_dim) == (dtype, head_dim) and r.capability <= capability]
    if fitting:
        row = max(fitting, key=lambda r: r.capability)
        return _flex(heuristic, row.block_m, row.block_n, row.num_stages, row.num_warps)
    wide, narrow = dtype == "float32", head_dim > WIDE_HEAD
    block_m, block_n = {(False, False): (128, 64), (True, False): (64, 64), (False, True): (64, 32), (True, True): (32, 16)}[
        wide, narrow
    ]
    return _flex(heuristic, block_m, block_n, 1 if heuristic.family == "rocm" else 3, 4)


BACKWARD: dict[tuple[int, int], tuple[int, int, int, int]] = {
    (90, 64): (64, 64, 3, 4), (90, 128): (64, 128, 3, 8), (90, 0): (64, 64, 2, 4),
    (80, 64): (32, 128, 3, 4), (80, 128): (64, 64, 3, 4), (80, 0): (64, 64, 2, 4),
}  # fmt: skip
"""(minimum capability, head size or 0 for any other) → block_m, block_n, stages, warps."""


def backward(heuristic: Heuristic, dtype: str, head_dim: int, capability: int) -> Flex:
    """The default config of the backward pass, by dtype, head size and capability (90: Hopper); see BACKWARD."""
    level = 90 if capability >= 90 else 80 if capability >= 80 else 0
    if dtype == "float32" or not level or heuristic.family == "rocm":
        return _flex(heuristic, 16, 16, 1, 4)
    block_m, block_n, stages, warps = BACKWARD.get((level, head_dim), BACKWARD[level, 0])
    if (level, head_dim) == (80, 128) and capability in SHORT_SHARED_MEMORY:
        stages = 2
    return _flex(heuristic, block_m, block_n, stages, warps)


def decode(heuristic: Heuristic, dtype: str, head_dim: int, capability: int) -> FlexDecode:
    """The default config for few queries."""
    if heuristic.family == "rocm":
        return RocmFlexDecode(64, 1, 4)
    deep = capability >= 90 and not (dtype == "float32" and head_dim > 128)
    return FlexDecode(64, 3 if deep else 1, 2)


def forward_set(heuristic: Heuristic, exhaustive: bool = False) -> tuple[Flex, ...]:
    """The forward configs to try; ROCm pipelines one or two stages."""
    if exhaustive:
        return tuple(spaces.flex_forward(heuristic.family == "rocm"))
    rows = [row for row in heuristic.table("flex_attn_fwd_autotune") if isinstance(row, Flex)]
    if heuristic.family != "rocm":
        return tuple(rows)
    return _unique(replace(row, num_stages=s) for row in rows for s in spaces.ROCM_FLEX_STAGES)


def backward_set(heuristic: Heuristic, exhaustive: bool = False) -> tuple[Flex, ...]:
    """The backward configs to try."""
    rocm = heuristic.family == "rocm"
    return tuple(spaces.flex_backward(rocm) if exhaustive else spaces.flex_backward_autotune(rocm))


def decode_set(heuristic: Heuristic, exhaustive: bool = False) -> tuple[FlexDecode, ...]:
    """The configs to try for few queries."""
    if exhaustive:
        return tuple(spaces.flex_decode(heuristic.family == "rocm"))
    return tuple(row for row in heuristic.table("flex_decode_autotune") if isinstance(row, FlexDecode))


def _flex(heuristic: Heuristic, block_m: int, block_n: int, stages: int, warps: int) -> Flex:
    return (RocmFlex if heuristic.family == "rocm" else Flex)(block_m, block_n, stages, warps)


def _unique(configs: Iterable[Flex]) -> tuple[Flex, ...]:
    return tuple(dict.fromkeys(configs))
