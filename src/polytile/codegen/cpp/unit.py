"""A translation unit under construction: what every loop schedule needs to know, and the code around its body."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from polytile.codegen.cpp import memory, support, text
from polytile.codegen.cpp.body import Body
from polytile.codegen.cpp.prelude import parts_of, prelude
from polytile.codegen.cpp.random import run_lanes
from polytile.codegen.emission import comment
from polytile.codegen.writer import Writer
from polytile.ir import sizes
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.cpu.lanes import lane_bytes
from polytile.schedule.cpu.schedule import Stores
from polytile.schedule.cpu.scheduled import ScheduledLoop
from polytile.schedule.nest import Nest


@dataclass
class Unit:
    """The text of one scheduled loop, for vectors of `vector_bytes` bytes."""

    loop: ScheduledLoop
    vector_bytes: int
    body: Body = field(init=False)

    def __post_init__(self) -> None:
        adder = memory.ATOMIC if self.loop.schedule.stores is Stores.ATOMIC else memory.PLAIN
        self.body = Body(self.kernel, self.nest, adder=adder)
        self.body.streamed = frozenset(map(id, self.loop.streamed))

    @property
    def kernel(self) -> LoopKernel:
        return self.loop.kernel

    @property
    def nest(self) -> Nest:
        return self.loop.nest

    @property
    def lanes(self) -> int:
        lanes = self.vector_bytes // lane_bytes(self.nest)
        return lanes if self.loop.transposed else run_lanes(self.nest, lanes)

    @contextmanager
    def parallel(self, out: Writer) -> Iterator[None]:
        """The body of a parallel region, with the kernel's arguments as variables local to each thread. The compiler
        would reload arguments captured by the closure after every store, and recompute what depends on them."""
        with out.block("parallel(threads, [&](long thread, long workers) {", "});"):
            out.extend(arguments(self.kernel))
            yield

    def source(self, name: str, work: Writer) -> str:
        """The complete text: the loop as a comment, then the function `name` around the lines of `work`."""
        out = Writer()
        out.extend(comment(self.kernel, "//"))
        out.line(f"static constexpr int L = {self.lanes};")
        out.line("")
        with out.block(f'extern "C" long {name}(void* const* ptrs, const long* sizes, long threads) {{'):
            out.extend(arguments(self.kernel))
            out.line("long error = 0;")
            domain = text.index(sizes.product([a.size for a in self.kernel.loop.axes]))
            out.line(f"if ({domain} <= 0) return 0;")
            out.extend(work.lines)
            out.line("return error;")
        return preamble(out.text()) + "using namespace pt;\n" + out.text()


def arguments(kernel: LoopKernel, first_pointer: int = 0, first_size: int = 0) -> list[str]:
    """Declares variables for the kernel's tensors and sizes, starting at these positions among the pointers and integers."""
    lines = []
    for k, tensor in enumerate(kernel.tensors, first_pointer):
        kind = ("const " if tensor.role == "in" else "") + text.storage_type(tensor.dtype)
        lines.append(f"{kind}* const {tensor.name} = ({kind}*)ptrs[{k}];")
    for k, symbol in enumerate(kernel.symbols, first_size):
        lines.append(f"const long {symbol} = sizes[{k}];")
    return lines


def scratch(out: Writer, kind: str, name: str, count: str, leave: str) -> None:
    """Allocates `count` values for the duration of the kernel. If memory is short, `error` is set and `leave` executed."""
    out.line(f"Scratch<{kind}> {name}({count});")
    out.line(f"if ({name}.is_missing(error)) {leave}")


LEAVE_THREAD, LEAVE_KERNEL = "return;", "return error;"
"""Statement after a failure inside, and outside, a parallel region."""


def preamble(body: str) -> str:
    """The text that must precede `body`: the parts of the prelude, and of the generated loops' own helpers, that it uses."""
    helpers = support.text(body)
    return prelude(parts_of(helpers + body)) + helpers
