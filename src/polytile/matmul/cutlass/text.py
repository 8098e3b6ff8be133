"""The text of a product for a config and the facts of a regime, and how it is launched (docs/decisions/0020)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Min

from polytile.codegen.triton.kernel import Argument, Descriptor, Kind, Launch, Scratch, TritonKernel
from polytile.codegen.triton.tile import divides
from polytile.errors import LoweringError
from polytile.ir import sizes
from polytile.matmul import scales
from polytile.matmul.cutlass.configs import FEWEST_STEPS, STEP_BYTES, WARPS, scratch, shared_bytes
from polytile.matmul.cutlass.finish import Epilogue, epilogue
from polytile.matmul.cutlass.numbers import NUMBERS
from polytile.matmul.cutlass.weights import Weights, weights
from polytile.matmul.triton.operands import even_k, symbol
from polytile.matmul.triton.unit import accumulator
from polytile.problem import Config
from polytile.schedule.facts import Facts

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

TEXTS = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.h"))}
"""The CUDA C++ of this folder, by name."""

SWIZZLES = {128: 3, 64: 2, 32: 1}
"""How the driver numbers the exchange of 16-byte pieces among runs of so many bytes."""
MULTIPLIED = (torch.bfloat16, torch.float16, torch.int8)
"""Types of operands before Hopper."""
BYTE = 0
"""How it numbers the type of bytes."""

PARTS_WARPS, PARTS_PLACES = 8, 4
"""Of a thread block that adds up parts, and how many of them each multiprocessor has."""

GROUP = 8
"""Rows of clusters whose blocks follow each other, column by column: what they read of B stays in the L2 cache."""


@dataclass(frozen=True)
class Operand:
    """The layout of A or B in memory: its tensor, the length of its rows' axis, whether k is the axis of stride 1, and the
    strides of the other axes, the batch first if there is one. `together`: its elements in each that is copied."""

    tensor: str
    length: str
    along_k: bool
    strides: tuple[sympy.Expr, ...]
    together: int = 1

    def descriptor(self, rows: int, config: Config) -> Descriptor:
        """The descriptor of copies of `rows` rows, or of a run of them if the rows' axis has stride 1."""
        k, wide = FloorDiv(symbol("K"), self.together), int(config["k"]) // self.together
        shape, block = ((symbol(self.length), k), (rows, wide)) if self.along_k else ((k, symbol(self.length)), (wide, wide))
        batch, one = ((symbol("batch"),), (1,)) if len(self.strides) > 1 else ((), ())
        return Descriptor(self.tensor, (*batch, *shape), self.strides, (*one, *block))

    def copyable(self, facts: Facts) -> bool:
        """Whether the copy engine takes it wherever the facts hold."""
        strides = (facts.divides(s.name) if isinstance(s, sympy.Symbol) else divides(16, s, facts) for s in self.strides)
        return self.tensor in facts.aligned and all(strides)


def operands(kernel: GemmKernel) -> tuple[Operand, Operand]:
    """A and B."""
    a, b = (layout == "k" for layout in kernel.layouts)
    rows = ("a_stride_m" if a else "a_stride_k", "b_stride_n" if b else "b_stride_k")
    strides = [((symbol(f"{stride[0]}_stride_b"),) if kernel.spec.batched else ()) + (symbol(stride),) for stride in rows]
    if (integers := weights(kernel)) is not None:
        return Operand("A", "M", a, strides[0]), Operand(integers.tensor, "N", b, (integers.apart,), 8 // integers.bits)
    return Operand("A", "M", a, strides[0]), Operand("B", "N", b, strides[1])


def able(kernel: GemmKernel) -> bool:
    """Whether CUTLASS has a product of these types and layouts, and its epilogue has a text: operands in memory as the tensor
    cores take them. Of other types than 16-bit floats they read both along k alone. A scale is shared along one step of k."""
    spec, dtype = kernel.spec, kernel.in_dtype
    if weights(kernel) is not None:
        return _finishable(kernel)
    plain = not any(kernel.prologues) and kernel.second is None and not kernel.packed and not spec.grouped
    types = dtype in NUMBERS and kernel.operand_dtypes == (dtype, dtype) and (dtype != torch.float32 or kernel.tf32)
    if not plain or not types or "any" in kernel.layouts or not _scalable(kernel):
        return False
    if NUMBERS[dtype].along_k and kernel.layouts != ("k", "k"):
        return False
    return _finishable(kernel)


def _finishable(kernel: GemmKernel) -> bool:
    try:
        epilogue(kernel)
    except LoweringError:
        return False
    return True


def _scalable(kernel: GemmKernel) -> bool:
    if kernel.scales is None:
        return True
    (a, b), step = kernel.scales, STEP_BYTES // kernel.in_dtype.itemsize
    return a is not None and NUMBERS[kernel.in_dtype].promoted and a[1] == b[0] == step and not kernel.spec.batched


def generate(kernel: GemmKernel, config: Config, facts: Facts, sms: int) -> TritonKernel:
    """The launches. Raises LoweringError where the facts do not say that the copy engine takes the operands: they begin at
    multiples of 16 bytes, and so do their rows and items. A regime's facts say of row strides only whether 16 elements divide
    them."""
    for operand in operands(kernel):
        if not operand.copyable(facts):
            raise LoweringError(
                f"{operand.tensor} does not begin at a multiple of 16 bytes, or its rows are not a multiple of 16 elements apart"
            )
    if config.get("down"):
        return TritonKernel((_multistage(kernel, config, facts, sms),))
    first = _product(kernel, config, facts, sms)
    if not config.get("split"):
        return TritonKernel((first,))
    sums = Scratch(accumulator(kernel.in_dtype), sympy.Integer(scratch(config, sms)))
    return TritonKernel((first, _parts(kernel, config, facts, sms)), (sums,))


def _product(kernel: GemmKernel, config: Config, facts: Facts, sms: int) -> Launch:
    (a, b), last, split = operands(kernel), epilogue(kernel), bool(config.get("split"))
    cluster, n = int(config["cluster"]), int(config["n"])
    arguments = (
        Argument(Kind.DESCRIPTOR, "a", "map", 0), Argument(Kind.DESCRIPTOR, "b", "map", 1), *_sizes(),
        *(Argument(Kind.TENSOR if "*" in kind else Kind.SYMBOL, name, "i64") for name, kind in _scaling(kernel).items()),
        *([Argument(Kind.SCRATCH, "parts", "*")] if split else []), *_of_epilogue(last),
    )  # fmt: skip
    grid = sympy.Integer(sms) if split else Min(_blocks(config), sympy.Integer(sms // cluster)) * cluster
    body = source(kernel, config, last.vectors(facts), sms)
    return Launch(
        body, arguments, (), (), WARPS, 0, (grid, sizes.ONE, sizes.ONE), overlaps=True,
        descriptors=(a.descriptor(int(config["m"]), config), b.descriptor(n // cluster, config)), cluster=cluster,
        own=(("shared", shared_bytes(config, kernel.in_dtype.itemsize)),),
    )  # fmt: skip


def able_before_hopper(kernel: GemmKernel) -> bool:
    """The same on devices before Hopper: 16-bit floats and int8, both operands along k, without scales by blocks."""
    whole = kernel.layouts == ("k", "k") and kernel.scales is None and weights(kernel) is None
    return whole and kernel.in_dtype in MULTIPLIED and able(kernel)


def _multistage(kernel: GemmKernel, config: Config, facts: Facts, sms: int) -> Launch:
    """The launch for devices before Hopper."""
    if not even_k(int(config["k"]), facts):
        raise LoweringError(f"K is not known to be a multiple of {config['k']}")
    last, strides = epilogue(kernel), ("a_stride_b", "a_stride_m", "b_stride_b", "b_stride_n")
    arguments = (
        Argument(Kind.TENSOR, "A", "*"), Argument(Kind.TENSOR, "B", "*"),
        *(Argument(Kind.SYMBOL, name, "i64") for name in strides), *_sizes(), *_of_epilogue(last),
    )  # fmt: skip
    numbers = {"DOWN": config["down"], "ACROSS": config["across"]}
    lines = [f"constexpr int {name} = {value};" for name, value in numbers.items()]
    lines.append(f"#define OPERAND_PARAMETERS {''.join(f'long long {name}, ' for name in strides)}")
    preamble, sums = _preamble(kernel, config, False, sms), NUMBERS[kernel.in_dtype].sums
    body = "\n".join([*preamble, *lines, last.text(sums), "", TEXTS["multistage"].read_text()])
    own = (("shared", shared_bytes(config, kernel.in_dtype.itemsize)),)
    return Launch(body, arguments, (), (), int(config["warps"]), 0, (_blocks(config), sizes.ONE, sizes.ONE), own=own)


def _scaling(kernel: GemmKernel) -> dict[str, str]:
    """Type of each argument that scales need, by its name."""
    if (integers := weights(kernel)) is not None:
        return integers.members
    names = (*scales.blocks(kernel), *scales.size_names(kernel))
    return {name: "const float *" if name in scales.AXES else "long long " for name in names}


def _parts(kernel: GemmKernel, config: Config, facts: Facts, sms: int) -> Launch:
    """The launch that adds up the parts of blocks that are split."""
    last = epilogue(kernel)
    arguments = (Argument(Kind.SCRATCH, "parts", "*"), *_sizes(), *_of_epilogue(last))
    grid = sympy.Integer(PARTS_PLACES * sms), sizes.ONE, sizes.ONE
    preamble, sums = _preamble(kernel, config, False, sms), NUMBERS[kernel.in_dtype].sums
    body = "\n".join([*preamble, last.text(sums), "", TEXTS["parts"].read_text()])
    return Launch(body, arguments, (), (), PARTS_WARPS, 0, grid, overlaps=True, own=(("shared", 0),))


def _sizes() -> list[Argument]:
    return [Argument(Kind.SYMBOL, name, "i32") for name in ("M", "N", "K", "batch")]


def _of_epilogue(last: Epilogue) -> list[Argument]:
    tensors = [Argument(Kind.TENSOR, name, "*") for name in (last.stored, *last.read)]
    return [*tensors, *(Argument(Kind.SYMBOL, name, "i64") for name in last.symbols)]


def _blocks(config: Config) -> sympy.Expr:
    """The number of clusters' blocks in C."""
    m, n = int(config["m"]) * int(config["cluster"]), int(config["n"])
    return symbol("batch") * FloorDiv(symbol("M") + m - 1, m) * FloorDiv(symbol("N") + n - 1, n)


def copied(kernel: GemmKernel, descriptor: Descriptor) -> tuple[int, ...]:
    """How elements are copied by a descriptor, in the form of codegen/triton/compile.py's reports."""
    integers, dtype = weights(kernel), kernel.in_dtype
    size, kind = dtype.itemsize, NUMBERS[dtype].driver
    if integers is not None and descriptor.tensor == integers.tensor:
        size, kind = 1, BYTE
    return SWIZZLES[descriptor.block[-1] * size], size, kind, *descriptor.block


def source(kernel: GemmKernel, config: Config, vectors: bool, sms: int) -> str:
    """CUDA C++. `vectors`: rows of C begin at multiples of 16 bytes."""
    last, split, integers, scaling = epilogue(kernel), bool(config.get("split")), weights(kernel), _scaling(kernel)
    lines = [
        f"#define SCALING_PARAMETERS {''.join(f'{kind}{name}, ' for name, kind in scaling.items())}",
        f"#define SCALING_ARGUMENTS {', '.join(scaling)}",
        f"#define PARTS_PARAMETER {'Sum *parts,' if split else ''}",
        f"#define PARTS_ARGUMENT {'parts' if split else 'nullptr'}",
    ]
    body = [TEXTS[name].read_text() for name in ("common", *(("scales", "product") if integers is None else ("mixed",)))]
    own = [] if integers is None else [*_of_integers(integers), integers.text()]
    preamble = _preamble(kernel, config, vectors, sms)
    return "\n".join([*preamble, *own, *lines, last.text(NUMBERS[kernel.in_dtype].sums), "", *body])


def _of_integers(integers: Weights) -> list[str]:
    """What mixed.h asks of B's elements."""
    scaled = 0 if integers.scale is None else 2 if integers.scale.group else 1
    numbers = {"BITS": integers.bits, "MIDDLE": integers.middle, "SCALED": scaled, "LOW_FIRST": int(integers.low_first)}
    return [f"using Number = {integers.number};", *(f"constexpr int {name} = {value};" for name, value in numbers.items())]


def _preamble(kernel: GemmKernel, config: Config, vectors: bool, sms: int) -> list[str]:
    """What both kernels' texts begin with."""
    (a, b), number, split = operands(kernel), NUMBERS[kernel.in_dtype], bool(config.get("split"))
    rows, columns = (kernel.scales[0][0], kernel.scales[1][1]) if kernel.scales is not None and kernel.scales[0] else (0, 0)
    numbers = {
        "BM": config["m"], "BN": config["n"], "BK": config["k"], "STAGES": config["stages"], "CLUSTER": config["cluster"],
        "GROUP": GROUP, "SHARED": shared_bytes(config, kernel.in_dtype.itemsize), "PROGRAMS": sms,
        "FEWEST_STEPS": FEWEST_STEPS, "PARTS_THREADS": 32 * PARTS_WARPS, "A_SCALED": rows, "B_SCALED": columns,
    }  # fmt: skip
    flags = {
        "PINGPONG": bool(config.get("pingpong")), "A_ALONG_K": a.along_k, "B_ALONG_K": b.along_k, "BATCHED": kernel.spec.batched,
        "PROMOTED": number.promoted and kernel.scales is None, "SPLIT": split, "C_VECTORS": vectors,
    }  # fmt: skip
    return [
        "#include <cutlass/numeric_types.h>",
        f"using Element = {number.name};",
        f"using Sum = {number.sums};",
        f"using Output = {epilogue(kernel).output};",
        *(f"constexpr int {name} = {value};" for name, value in numbers.items()),
        *(f"constexpr bool {name} = {str(value).lower()};" for name, value in flags.items()),
        "", TEXTS["arithmetic"].read_text(), TEXTS["blocks"].read_text(),
    ]  # fmt: skip
