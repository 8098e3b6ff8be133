"""`polytile configs`: what a device family's heuristic tries on a matrix product, and why it leaves out the rest."""

from __future__ import annotations

from dataclasses import fields

from polytile.cost import cpp_matmul as prior
from polytile.errors import ConfigTableError
from polytile.matmul import cpp as gemm
from polytile.matmul.configs import Request, Verdict, heuristic
from polytile.matmul.configs.families import Cpu
from polytile.matmul.configs.heuristic import blocks
from polytile.matmul.cpp import GemmSpec
from polytile.report import Table
from polytile.report.tables import micros
from polytile.runtime.cuda.device import named

DEFAULT_DEVICE = {"cuda": "H100", "rocm": "MI300X"}
"""The device whose limits count where none is named."""

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float64": 8}
SHOWN_DROPS = 40


def tables(
    family: str, m: int, n: int, k: int, table: str, dtype: str, exhaustive: bool, cap: int | None, device: str
) -> tuple[Table, ...]:
    """The configs tried and those left out. Raises ConfigTableError and DeviceError for names that are not known."""
    dtype = dtype or ("float32" if family == "cpu" else "bfloat16")
    if dtype not in ITEMSIZE:
        raise ConfigTableError(f"there is no type {dtype!r} here; types are {', '.join(ITEMSIZE)}.")
    configs = heuristic(family)
    if table == "register_tiles" or (not table and isinstance(configs, Cpu)):
        return _register_tiles(configs, m, n, k, dtype)
    place = named(device or DEFAULT_DEVICE[family]) if device or family in DEFAULT_DEVICE else None
    request = Request(
        m, n, k, table or "mm", ITEMSIZE[dtype], dtype == "int8",
        exhaustive=exhaustive, cap=cap, shared_bytes=place.shared_per_block if place else None,
    )  # fmt: skip
    verdicts = configs.considered(request)
    title = f"{family} {table or 'mm'} {m}×{n}×{k} {dtype}" + (f" on {place.name}" if place else "")
    return _tried(title, verdicts), _dropped(verdicts)


def _tried(title: str, verdicts: tuple[Verdict, ...]) -> Table:
    rows = []
    for verdict in verdicts:
        config = verdict.config
        if config is not None:
            names = [f.name for f in fields(config) if f.name not in ("hint", *BLOCKS) and getattr(config, f.name) is not None]
            others = " ".join(f"{name}={getattr(config, name)}" for name in names)
            shape = f"{config.block_m}x{config.block_n}x{config.block_k}"
            rows.append((shape, others, "" if _unchanged(verdict) else f"from {blocks(verdict.row)}"))
    return Table.from_rows(f"{title}: {len(rows)} tried", ["blocks", "besides", "cut"], rows)


BLOCKS = ("block_m", "block_n", "block_k")


def _unchanged(verdict: Verdict) -> bool:
    return verdict.config is not None and all(getattr(verdict.config, b) == getattr(verdict.row, b) for b in BLOCKS)


def _dropped(verdicts: tuple[Verdict, ...]) -> Table:
    """Each row with its reason; of an exhaustive space how many each rule has left out."""
    dropped = [verdict for verdict in verdicts if verdict.config is None]
    title = f"{len(dropped)} left out"
    if len(dropped) <= SHOWN_DROPS:
        return Table.from_rows(title, ["config", "why"], [(blocks(v.row), v.reason) for v in dropped])
    groups: dict[str, list[Verdict]] = {}
    for verdict in dropped:
        groups.setdefault(verdict.rule, []).append(verdict)
    rows = [(str(len(g)), rule, f"{blocks(g[0].row)}: {g[0].reason}") for rule, g in groups.items()]
    return Table.from_rows(title, ["configs", "by the rule", "for example"], rows)


def _register_tiles(heuristic: object, m: int, n: int, k: int, dtype: str) -> tuple[Table, ...]:
    """The register tiles of this machine's vectors for row-major operands, with the prior's prediction on one thread."""
    from polytile.runtime import toolchain

    assert isinstance(heuristic, Cpu)
    size = {"batch": 1, "M": m, "N": n, "K": k}
    if dtype not in gemm.STORAGE:
        raise ConfigTableError(f"there are no register tiles for {dtype}; choose one of {', '.join(gemm.STORAGE)}.")
    lanes = toolchain.find().lanes // (2 if dtype == "float64" else 1)
    spec, machine = GemmSpec(dtype=dtype, out_dtype="int32" if dtype == "int8" else dtype), gemm.Machine.detected()
    width = lanes * (8 if dtype == "float64" else 4)
    able = gemm.configs(spec, lanes)
    tried = [c for c in able if gemm.valid(spec, c, size)]
    rows = [(str(c), micros(prior.cost(spec, c, size, 1, machine))) for c in tried]
    sized = [(str(c), "of no use at these sizes") for c in able if c not in tried]
    other = len(heuristic.register_tiles(width)) - len(able)
    if other:
        sized.append((str(other), f"rows for other types or layouts than row-major {dtype}"))
    return (
        Table.from_rows(f"cpu register tiles {m}×{n}×{k} {dtype}, vectors of {width} bytes: {len(rows)} tried",
                        ["config", "predicted µs, one thread"], rows),
        Table.from_rows(f"{len(able) - len(tried) + other} left out", ["config", "why"], sized),
    )  # fmt: skip
