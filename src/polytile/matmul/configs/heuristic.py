"""The heuristic of a device family: turns a table's rows into the configs to try on a problem.

A row passes through these steps in order. Each returns a config, the same or a smaller one, or the reason why the row is left
out.

    scaled    each tile dimension ≤ the next power of two of its size, and ≥ 16 (k: 32 if an operand is int8)
    excluded  tiles that the caller's predicate excludes
    fitting   shared memory within the limit; in exhaustive spaces also accumulators ≤ 255 registers per thread
    teamed    num_warps ≤ block_m · block_n / 256
    own       further requirements of the family and the table
    new       not a duplicate in any field, within the cap on the number of configs

Known wrong: limiting a tile to the size halves the work of a partial tile, but a taller tile may still win if B would otherwise
be read once more. Measurements decide among the remaining configs, never among those left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from polytile import locks
from polytile.errors import ConfigTableError
from polytile.matmul.configs import spaces
from polytile.matmul.configs.files import Tables
from polytile.matmul.configs.records import KINDS, PLAIN, Gemm, Record

SMALLEST, SMALLEST_INT8_K = 16, 32
MOST_ACCUMULATORS = 255
ELEMENTS_OF_A_WARP = 256


@dataclass(frozen=True)
class Request:
    """What configs are requested for.

    Attributes
    ----------
    m, n, k
        The sizes, for example of a hint.
    table
        The table's name.
    itemsize
        Bytes of an operand's element.
    int8
        An operand is int8.
    scale
        A factor that is applied to every tile dimension first.
    exhaustive
        Use the exhaustive space instead of the table.
    shared_bytes
        Limit of shared memory per block; None if unknown.
    exclude
        `exclude(block_m, block_n, block_k)` is true for tiles that the caller cannot use.
    cap
        Maximum number of configs.
    hint
        Part of the configs' identity.
    """

    m: int
    n: int
    k: int
    table: str = "mm"
    itemsize: int = 2
    int8: bool = False
    scale: float = 1.0
    exhaustive: bool = False
    shared_bytes: int | None = None
    exclude: Callable[[int, int, int], bool] | None = None
    cap: int | None = None
    hint: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What became of one row: the config to try, or None with the rule that left it out and the reason."""

    row: Gemm
    config: Gemm | None
    rule: str = ""
    reason: str = ""


class Dropped(Exception):
    """Raised when a rule leaves out a row; the message says why. Never leaves this package."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule, self.reason = rule, reason


class Heuristic:
    """The heuristic of one device family. Built once and shared by threads: tables are replaced as a whole, under a lock."""

    default_stages = 2
    """Number of stages if a record leaves it to the backend."""

    def __init__(self, family: str, tables: Tables) -> None:
        self.family = family
        self._tables: Tables = dict(tables)
        self._lock = locks.lock()

    @property
    def tables(self) -> Tables:
        return self._tables

    def table(self, name: str) -> tuple[Record, ...]:
        """The rows of a table in canonical order. Raises ConfigTableError if the family has no such table."""
        if name not in self._tables:
            raise ConfigTableError(
                f"family {self.family!r} has no config table {name!r}; it has {', '.join(sorted(self._tables))}."
            )
        return self._tables[name]

    def replace(self, name: str, rows: Iterable[Record]) -> tuple[Record, ...]:
        """Replace or add a table, and return its previous rows.

        Raises
        ------
        ConfigTableError
            If no family has a table of that name, or the rows are of another kind than the table's.
        """
        if name not in KINDS:
            raise ConfigTableError(f"there is no config table {name!r}; tables are {', '.join(KINDS)}.")
        given, kind = tuple(rows), PLAIN[KINDS[name]]
        for row in given:
            if not isinstance(row, kind):
                raise ConfigTableError(f"table {name!r} of family {self.family!r} has rows {kind.__name__}(...), not {row!r}.")
        with self._lock:
            before = self._tables.get(name, ())
            self._tables = {**self._tables, name: given}
        return before

    def configs(self, request: Request) -> tuple[Gemm, ...]:
        """The configs to try, in the table's order."""
        return tuple(verdict.config for verdict in self.considered(request) if verdict.config is not None)

    def considered(self, request: Request) -> tuple[Verdict, ...]:
        """Every row of the table, with its verdict."""
        verdicts: list[Verdict] = []
        seen: dict[Gemm, Gemm] = {}
        for row in self.rows(request):
            try:
                config = self._fitted(row, request)
                if config in seen:
                    raise Dropped("duplicate", f"becomes the same config as {blocks(seen[config])}")
                if request.cap is not None and len(seen) >= request.cap:
                    raise Dropped("cap", f"beyond the cap of {request.cap} configs")
            except Dropped as dropped:
                verdicts.append(Verdict(row, None, dropped.rule, dropped.reason))
                continue
            seen[config] = row
            verdicts.append(Verdict(row, config))
        return tuple(verdicts)

    def rows(self, request: Request) -> Iterable[Gemm]:
        """The rows to consider: the table's, or the exhaustive space. Raises ConfigTableError for a table of another
        kind."""
        if request.exhaustive:
            return self.space()
        rows = self.table(request.table)
        if KINDS[request.table] != "gemm":
            raise ConfigTableError(f"table {request.table!r} of {self.family!r} holds no configs of matrix products.")
        return [row for row in rows if isinstance(row, Gemm)]

    def space(self) -> Iterable[Gemm]:
        return spaces.gemm()

    def _fitted(self, row: Gemm, request: Request) -> Gemm:
        config = scaled(row, request)
        if request.exclude is not None and request.exclude(config.block_m, config.block_n, config.block_k):
            raise Dropped("predicate", "the caller cannot use these blocks")
        self._check_room(config, request)
        warps = max(1, min(config.num_warps, config.block_m * config.block_n // ELEMENTS_OF_A_WARP))
        config = self.finish(config if warps == config.num_warps else replace(config, num_warps=warps))
        if "persistent" in request.table and config.num_warps == 2:
            raise Dropped("persistent", "persistent kernels never use 2 warps")
        return config

    def _check_room(self, config: Gemm, request: Request) -> None:
        """Check shared memory if its limit is known, and registers in exhaustive spaces only, as the rows of tables were chosen
        with care."""
        shared = config.shared_bytes(request.itemsize, self.default_stages)
        if request.shared_bytes is not None and shared > request.shared_bytes:
            raise Dropped("shared memory", f"needs {shared} bytes, a block may have {request.shared_bytes}")
        if request.exhaustive and config.accumulators > MOST_ACCUMULATORS:
            took = f"{config.accumulators:.0f}"
            raise Dropped("registers", f"the sums take {took} registers of a thread, it has {MOST_ACCUMULATORS}")

    def finish(self, config: Gemm) -> Gemm:
        """Apply the family's own requirements. Raises Dropped."""
        return config


def scaled(row: Gemm, request: Request) -> Gemm:
    """The row with every tile dimension limited by its size, for the request's hint."""
    smallest_k = SMALLEST_INT8_K if request.int8 else SMALLEST

    def cut(block: int, size: int, smallest: int) -> int:
        return max(min(int(block * request.scale), next_power(size)), smallest)

    m = cut(row.block_m, request.m, SMALLEST)
    n = cut(row.block_n, request.n, SMALLEST)
    k = cut(row.block_k, request.k, smallest_k)
    if (m, n, k, request.hint) == (row.block_m, row.block_n, row.block_k, row.hint):
        return row
    return replace(row, block_m=m, block_n=n, block_k=k, hint=request.hint)


def next_power(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()


def blocks(config: Gemm) -> str:
    """A config as one word: 128x64x32 s3 w4."""
    stages = "" if config.num_stages is None else f" s{config.num_stages}"
    return f"{config.block_m}x{config.block_n}x{config.block_k}{stages} w{config.num_warps}"
