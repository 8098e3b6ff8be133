"""The configs to try for an attention: a short list per dtype and head size, and where each is worthwhile.

    flash   m × n tiles of rows by keys; with `packed`, the rows are those of all query heads that share a key head
    specialised   m × n tiles; m // 64 warpgroups compute, one more warp loads; `resident` programs take tiles in turn
    split   the same, always packed; programs share the keys, enough to fill the multiprocessors `waves` times
    backward   the backward pass, with m × n tiles in both of its launches
    backward specialised   n // 64 warpgroups compute tiles of n rows in steps of m keys, then tiles of n keys in steps of m rows

The lists hold configs that came within 5 % of the best in some benchmark cell on an H200, and those that small or few rows need.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from polytile.attention.problem import AttentionProblem
from polytile.attention.schedule import BY_NAME, AttentionSchedule, schedule_of
from polytile.attention.triton.unit import padded
from polytile.problem import Config
from polytile.runtime.cuda.device import DeviceFacts

Row = tuple[int, int, int, int]
"""m, n, stages, warps."""

HALF: dict[int, tuple[Row, ...]] = {
    64: ((64, 64, 3, 4), (128, 64, 3, 4), (16, 128, 3, 4)),
    128: ((64, 64, 3, 4), (128, 64, 3, 8), (128, 128, 2, 8), (16, 128, 3, 4)),
    256: ((128, 64, 2, 8), (128, 32, 3, 8), (64, 32, 3, 4), (16, 64, 2, 4)),
    512: ((64, 32, 2, 8), (64, 16, 2, 8), (16, 32, 2, 4)),
}  # fmt: skip
"""Tiles for 16-bit dtypes, by the padded head size; the first entry serves all heads up to 64."""
SINGLE: dict[int, tuple[Row, ...]] = {
    64: ((128, 64, 2, 8), (64, 64, 2, 4), (32, 32, 3, 4), (16, 64, 3, 4)),
    128: ((128, 32, 2, 8), (32, 32, 3, 4), (16, 32, 3, 4)),
    256: ((16, 32, 2, 4), (32, 32, 2, 4)),
}  # fmt: skip
"""Tiles for float32. Larger heads would not fit in registers."""
SPECIALISED: dict[int, tuple[Row, ...]] = {
    64: ((192, 128, 2, 16), (128, 128, 2, 12)), 128: ((128, 128, 2, 12),), 256: ((128, 64, 2, 12),),
}  # fmt: skip
"""Tiles for specialised warps, by the padded head size."""
SPECIALISED_BACKWARD: dict[int, tuple[Row, ...]] = {
    64: ((128, 128, 2, 12), (64, 128, 3, 12)), 128: ((64, 128, 2, 12),), 256: ((64, 128, 2, 12),),
}  # fmt: skip
"""The same for the backward pass."""
SPECIALISED_ON = 90
"""The one capability whose matrix instructions (wgmma) they use."""
SHARES: dict[int, dict[int, tuple[Row, ...]]] = {
    2: {64: ((16, 128, 3, 4), (64, 64, 3, 4)), 128: ((16, 128, 3, 4), (16, 64, 3, 4), (64, 64, 3, 4)),
        256: ((16, 64, 2, 4), (16, 64, 3, 4)), 512: ((16, 32, 2, 4),)},
    4: {64: ((16, 64, 3, 4), (16, 32, 4, 4)), 128: ((16, 32, 3, 4),), 256: ((16, 32, 2, 4),)},
}  # fmt: skip
"""Tiles for split keys: element size in bytes → padded head size → tiles."""
BACKWARD: dict[int, dict[int, tuple[Row, ...]]] = {
    2: {64: ((64, 64, 2, 4), (128, 64, 2, 8), (64, 128, 2, 8), (16, 64, 2, 4)),
        128: ((64, 64, 2, 8), (64, 64, 1, 4), (32, 64, 2, 4), (16, 64, 2, 4)),
        256: ((64, 32, 1, 8), (32, 32, 1, 4), (16, 32, 1, 4))},
    4: {64: ((64, 32, 1, 8), (32, 32, 2, 4), (16, 32, 1, 4)), 128: ((32, 32, 1, 8), (16, 32, 1, 4))},
}  # fmt: skip
"""Tiles for the backward pass, in the same form. Those of 16 and 32 rows fit in memory but have not been measured."""
WAVES = (1, 2, 4)
FEW_ROWS = 256
"""Keys are split only if a key head has at most this many rows, over all its query heads."""
PACKED_UP_TO = 128
"""Packing is tried up to this many query rows; above, plain tiles are full enough."""
SMALL, GROUP = 16, 64
"""Rows of the smallest tile, and of a warpgroup's matrix instruction on Hopper."""


def shared_bytes(row: Row, head: int, itemsize: int) -> int:
    """Shared memory of a program in bytes: the tile of q, and the tiles of k and v in flight."""
    m, n, stages, _ = row
    return (m + 2 * stages * n) * head * itemsize


def backward_shared_bytes(row: Row, head: int, itemsize: int) -> int:
    """Shared memory of a backward program in bytes: two resident tiles, two in flight, the softmax weights and their gradient."""
    m, n, stages, _ = row
    return (2 * (max(m, n) + stages * max(m, n)) * head + 2 * m * n) * itemsize


def _rows(schedule: AttentionSchedule, itemsize: int) -> dict[int, tuple[Row, ...]]:
    if schedule.derivative:
        return SPECIALISED_BACKWARD if schedule.specialised else BACKWARD[itemsize]
    if schedule.specialised:
        return SPECIALISED
    return SHARES[itemsize] if schedule.shares_keys else HALF if itemsize == 2 else SINGLE


@cache
def _space(itemsize: int, shared: int, specialised: bool) -> tuple[Config, ...]:
    ways: list[tuple[str, dict[str, Any]]] = [("flash", {}), ("flash", {"packed": 1})]
    ways += [("split", {"packed": 1, "waves": waves}) for waves in WAVES]
    ways += [("specialised", {}), ("specialised", {"resident": 1})] if specialised else []
    configs: dict[Config, None] = {}
    for variant, more in ways:
        for head, rows in _rows(BY_NAME[variant], itemsize).items():
            for m, n, stages, warps in rows:
                if shared_bytes((m, n, stages, warps), head, itemsize) <= shared:
                    configs[Config.of(variant=variant, m=m, n=n, stages=stages, warps=warps, **more)] = None
    return tuple(configs)


@cache
def _backward_space(itemsize: int, shared: int, specialised: bool) -> tuple[Config, ...]:
    listed = ((head, row) for head, rows in BACKWARD[itemsize].items() for row in rows)
    fitting = dict.fromkeys(row for head, row in listed if backward_shared_bytes(row, head, itemsize) <= shared)
    further = dict.fromkeys(row for rows in SPECIALISED_BACKWARD.values() for row in rows) if specialised else {}
    return tuple(
        Config.of(variant=variant, m=m, n=n, stages=stages, warps=warps)
        for variant, rows in (("backward", fitting), ("backward specialised", further)) for m, n, stages, warps in rows
    )  # fmt: skip


def space(problem: AttentionProblem, device: DeviceFacts) -> tuple[Config, ...]:
    """Every config in canonical order, for all head sizes: plain tiles, packed tiles, split keys and specialised warps, or those
    of the backward pass."""
    more = problem.scores, problem.bias, problem.layout, problem.dropout
    plain = all(each is None for each in more) and all(problem.dense)
    specialised = plain and not problem.changes and problem.dtype.itemsize == 2 and device.capability == SPECIALISED_ON
    if problem.backward:
        return _backward_space(problem.dtype.itemsize, device.shared_per_block, specialised and problem.scale != 0)
    return _space(problem.dtype.itemsize, device.shared_per_block, specialised)


def head_block(size: Mapping[str, int]) -> int:
    """The padded head size under which tiles are listed."""
    return max(64, padded(size["D"]), padded(size["Dv"]))


def row_of(config: Config) -> Row:
    """The tile, stages and warps of a config."""
    return int(config["m"]), int(config["n"]), int(config["stages"]), int(config["warps"])


def valid(problem: AttentionProblem, config: Config, size: Mapping[str, int]) -> bool:
    """Whether `config` is worth trying at these sizes. Every config is correct at all sizes for which a tile holds a head, but
    specialised warps need a key, and heads of one padded size."""
    head, queries, itemsize = head_block(size), size["Mq"], problem.dtype.itemsize
    row, schedule = row_of(config), schedule_of(config)
    if row not in _rows(schedule, itemsize).get(head, ()):
        return False
    if schedule.specialised:
        alike = max(64, padded(size["D"])) == max(64, padded(size["Dv"]))
        return alike and min(size["Mkv"], size["D"], size["Dv"]) > 0 and queries > GROUP and _fits(row[0], queries, itemsize)
    if schedule.derivative:
        return min(queries, size["Mkv"], size["D"], size["Dv"]) > 0 and _fits(row[0], queries, itemsize)
    group = size["Hq"] // max(1, size["Hkv"])
    rows = group * queries
    if schedule.shares_keys:
        return problem.dropout is None and 0 < rows <= FEW_ROWS and _fits(row[0], rows, itemsize) and size["Mkv"] >= 2 * row[1]
    if config.get("packed"):
        return group > 1 and queries <= PACKED_UP_TO and _fits(row[0], rows, itemsize)
    return _fits(row[0], queries, itemsize)


def _fits(block: int, rows: int, itemsize: int) -> bool:
    """Whether a tile suits the number of rows.

    It must not exceed the next power of two of the rows, or the rows of a warpgroup. For 16-bit dtypes it must not be smaller
    than a warpgroup's if there are enough rows.
    """
    if block <= SMALL:
        return itemsize > 2 or rows <= 2 * SMALL
    return rows > SMALL and block <= max(GROUP, 1 << (rows - 1).bit_length())


@cache
def label(config: Config) -> str:
    """A config as a candidate's name: "flash 128x64 s3 w8", "flash packed 64x64 s3 w4", "split 16x128 s3 w4 2 waves",
    "specialised 128x128 s2 w12 resident", "backward 64x64 s2 w4", "backward specialised 64x128 s2 w12"."""
    resident = " resident" if config.get("resident") else ""
    packed = " packed" if config.get("packed") and not schedule_of(config).shares_keys else ""
    text = f"{config['variant']}{packed} {config['m']}x{config['n']} s{config['stages']} w{config['warps']}"
    return text + resident + (f" {config['waves']} waves" if config.get("waves") else "")
