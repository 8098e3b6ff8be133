"""What a generated matmul computes (GemmSpec) and how (GemmConfig): the two frozen values that make a kernel."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from polytile.problem import Config

STORAGE = ("float32", "bfloat16", "float64", "int8")
"""Types that generated C++ multiplies."""
OPERANDS = (*STORAGE, "float16", "float8_e4m3fn", "float8_e5m2")
RESULTS = ("float32", "bfloat16", "float64", "int32")
"""Types that generated C++ stores products in."""
OUTPUTS = (*RESULTS, "float16")
A_LAYOUTS = ("k", "m", "any")
B_LAYOUTS = ("n", "k", "any")
C_LAYOUTS = ("n", "m", "any")
FORMS = ("tile_packed", "tile_direct", "tile_prepacked", "splitk", "stream", "dot", "small")

PTRS = ("A", "B")
OUTPUT_PTRS = ("C",)
SIZES = ("batch", "M", "N", "K", "a_stride_b", "a_stride_m", "a_stride_k", "b_stride_b", "b_stride_k", "b_stride_n")
OUTPUT_SIZES = ("c_stride_b", "c_stride_m", "c_stride_n")
NARROW = ("", "int8")
"""Types of a B that is converted to A's as it is read; "" for none."""
GROUPED = ("", "m", "k")
"""The axis along which the groups of a grouped product follow each other; "" for other products."""
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8, "int8": 1}
ACCUMULATOR = {"float64": "float64", "int8": "int32"}
"""The dtype of the sums, where it is not float32."""


NIBBLES_TOGETHER = 8
NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)
"""The k of each 4 bits of a lane: those at one place of its halves are neighbours."""


@dataclass(frozen=True)
class GemmSpec:
    """C[batch, M, N] = sum over K of A[batch, M, K] * B[batch, K, N], all sizes and strides known only at run time.

    `dtype` is the storage of A and B, `b_dtype` that of a B whose elements are converted to it as they are read. Sums are kept in
    float32 (float64 for float64, int32 for int8, which wraps as ATen's does) and rounded once to `out_dtype`.
    `a_layout`, `b_layout` and `c_layout` name the axis whose stride is known to be 1 ("any": none is). `batched` False promises
    batch == 1. With `has_epilogue` the kernel has no C: the caller's C++ text receives the finished sums instead.
    With `group` an int8 B has a float32 scale for each column and each run of `group` k, row by row, behind B among the
    pointers. With `zeros` the numbers that are subtracted from B before that follow in the same order.
    With `nibbles_from` B's numbers are among the 16 from that one on, and its prepacked panels hold 4 bits of each; K and `group`
    are then multiples of 8.
    With `grouped`, "m" or "k", it is a grouped product (ir.template.Grouping) of as many groups as `batch` says; where each ends
    is behind B among the pointers.
    Raises ValueError for a value outside these tables, and for a narrowing that would round twice.
    """

    dtype: str = "float32"
    a_layout: str = "k"
    b_layout: str = "n"
    batched: bool = False
    out_dtype: str = "float32"
    has_epilogue: bool = False
    c_layout: str = "any"
    b_dtype: str = ""
    group: int = 0
    zeros: bool = False
    grouped: str = ""
    nibbles_from: int | None = None

    def __post_init__(self) -> None:
        allowed = (
            ("dtype", OPERANDS), ("a_layout", A_LAYOUTS), ("b_layout", B_LAYOUTS), ("out_dtype", OUTPUTS),
            ("c_layout", C_LAYOUTS), ("b_dtype", NARROW), ("grouped", GROUPED),
        )  # fmt: skip
        for name, choices in allowed:
            if getattr(self, name) not in choices:
                raise ValueError(f"GemmSpec.{name} is {getattr(self, name)!r}; generated matmuls take {', '.join(choices)}.")
        if (self.dtype == "int8") != (self.out_dtype == "int32"):
            raise ValueError(f"GemmSpec: products of {self.dtype} are not stored as {self.out_dtype}; int8 goes with int32.")
        if (self.group or self.zeros) and not (self.b_dtype and self.group):
            raise ValueError(f"GemmSpec.group is {self.group}: scales are for a B that is converted, not for {self.dtype}.")
        if self.nibbles_from is not None and (self.b_dtype != "int8" or self.group % 8):
            raise ValueError(f"GemmSpec: panels of 4 bits are for int8 in groups of a multiple of 8, not of {self.group}.")
        if self.b_dtype and self.dtype in ("float64", self.b_dtype):
            raise ValueError(f"GemmSpec: a B of {self.b_dtype} is converted to floats of at most 32 bits, not to {self.dtype}.")
        if self.accumulator == "float64" and self.out_dtype == "bfloat16":
            raise ValueError("GemmSpec: float64 sums stored as bfloat16 would round twice; store float32 and convert.")

    @property
    def stored_b(self) -> str:
        """The dtype of B in memory."""
        return self.b_dtype or self.dtype

    @property
    def accumulator(self) -> str:
        """The dtype of the sums, and of the vectors that an epilogue receives."""
        return ACCUMULATOR.get(self.dtype, "float32")

    @property
    def beside_b(self) -> int:
        """How many pointers there are to scales and zeros, or to the ends of groups."""
        return (self.group > 0) + self.zeros + bool(self.grouped)

    @property
    def leading_ptrs(self) -> int:
        """How many pointers stand before the epilogue's own in `ptrs`."""
        return len(PTRS) + self.beside_b + (0 if self.has_epilogue else len(OUTPUT_PTRS))

    @property
    def leading_sizes(self) -> int:
        """How many integers stand before the epilogue's own in `sizes`."""
        return len(SIZES) + (0 if self.has_epilogue else len(OUTPUT_SIZES))


@dataclass(frozen=True)
class GemmConfig:
    """The tunable numbers of one kernel.

    form        tile_packed: B is copied into panels inside the call; tile_direct: tiles on B as it lies; tile_prepacked:
                on panels made before the call (panels.py); splitk: tile_packed with K divided over the threads, so that sums
                depend on their number; stream: rows of B read once, for small M; dot: dot products along K for a B whose k is
                contiguous; small: one panel on the stack, no workspace
    mr, nv      a register tile is `mr` rows by `nv` vectors (dot: `nv` columns)
    kc, mc, nc  depth, rows and columns of a block (stream: `nc` columns of sums held in L1)
    unroll      k steps in one turn of the inner loop
    pack_a      A is copied into tiles too
    pairs       bfloat16 only: two k are multiplied at once and B is never widened (AVX512_BF16 instructions, if there are any).
                Panels of a narrower B are made such pairs block by block (`widens`)
    amx         tiles of AMX instead of vectors (amx.py)
    """

    form: str
    mr: int
    nv: int
    kc: int = 512
    mc: int = 96
    nc: int = 1024
    unroll: int = 1
    pack_a: bool = False
    pairs: bool = False
    amx: bool = False

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"GemmConfig.form is {self.form!r}; the forms are {', '.join(FORMS)}.")
        for name in ("mr", "nv", "kc", "mc", "nc", "unroll"):
            if getattr(self, name) < 1:
                raise ValueError(f"GemmConfig.{name} is {getattr(self, name)}; it must be at least 1.")

    def as_config(self) -> Config:
        """The same numbers as the Config that selection and the store deal in; of `amx` only that it is so, since configs of
        vectors in stores and plans do not name it."""
        numbers = asdict(self)
        return Config.of(**(numbers if self.amx else {name: n for name, n in numbers.items() if name != "amx"}))

    @staticmethod
    def of(config: Config) -> GemmConfig:
        """The inverse of `as_config`; raises KeyError naming a number that `config` lacks."""
        numbers = {field.name: config[field.name] for field in fields(GemmConfig) if field.name != "amx"}
        return GemmConfig(**numbers, amx=bool(config.get("amx")))  # type: ignore[arg-type]

    def __str__(self) -> str:
        flags = (" A" if self.pack_a else "") + (" pairs" if self.pairs else "") + (" amx" if self.amx else "")
        return f"{self.form} {self.mr}x{self.nv} k{self.kc} m{self.mc} n{self.nc} u{self.unroll}{flags}"


def widens(spec: GemmSpec, config: GemmConfig) -> bool:
    """Whether prepacked panels of a narrower B become pairs of bfloat16, multiplied by the scales of their groups, once for each
    block: from a few rows on that costs less than converting each element again for each tile of rows."""
    return config.form == "tile_prepacked" and config.pairs and bool(spec.b_dtype)


def converts(spec: GemmSpec, config: GemmConfig) -> bool:
    """Whether register tiles convert prepacked panels of a narrower B as they read them (narrow_panels.py)."""
    return config.form == "tile_prepacked" and not config.pairs and bool(spec.b_dtype)


def k_per_lane(spec: GemmSpec, config: GemmConfig) -> int:
    """How many k one lane of a register tile's operands holds: four of int8, two of bfloat16 in pairs, else one."""
    if spec.dtype == "int8":
        return 4
    return 2 if config.pairs else 1
