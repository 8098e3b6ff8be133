"""The fully unrolled inner kernels: dot products along K, rank-u updates, transposes in registers (register_tile.py: tiles)."""

from __future__ import annotations

CHAIN = 384
"""Products of float32 or float64 that are added up in a row, at most. The rounding of a sum grows with the root of their
number: of 16000 in a row the root mean square error was 7 times the library's, of 512 and then of these sums 1.4-2.1 times.
bfloat16's own rounding is larger than either."""


def lines(indent: int, statements: list[str]) -> str:
    """The statements as lines with this indentation in spaces."""
    return "".join(" " * indent + statement + "\n" for statement in statements)


def accumulators(rows: int, columns: int, start: str = "{{}}") -> list[str]:
    """One declaration a row of the sums c0_0 ... c{rows-1}_{columns-1}, which begin at `start`, a format of the row i."""
    return ["V " + ", ".join(f"c{i}_{j} = {start.format(i=i)}" for j in range(columns)) + ";" for i in range(rows)]


def unroll_pragma(unroll: int) -> list[str]:
    """The pragma that unrolls the next loop; none for `unroll` 1."""
    return [f"#pragma GCC unroll {unroll}"] if unroll > 1 else []


def swap_masks(lanes: int) -> list[tuple[int, list[int], list[int]]]:
    """For each block size h = lanes/2 ... 1 the two shuffles (low, high) of a pair (x, y) that exchange h x h blocks.

    low keeps x where lane & h is 0 and takes y's lane - h elsewhere; high keeps y where lane & h is set and takes x's
    lane + h elsewhere.
    """
    stages = []
    h = lanes // 2
    while h:
        low = [lane if not lane & h else lanes + lane - h for lane in range(lanes)]
        high = [lane + h if not lane & h else lanes + lane for lane in range(lanes)]
        stages.append((h, low, high))
        h //= 2
    return stages


def shuffles(lanes: int) -> str:
    """Functions low{h}(x, y) and high{h}(x, y) for every stage of `swap_masks`."""
    text = ""
    for h, low, high in swap_masks(lanes):
        for name, mask in (("low", low), ("high", high)):
            lanes_of = ", ".join(map(str, mask))
            text += f"static inline V {name}{h}(V x, V y) {{ return SHUFFLE(x, y, {lanes_of}); }}\n"
    return text


# GCC 12 and clang have the same builtin for constant shuffles; older GCC spells it with an index vector.
SHUFFLE_MACRO = """\
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define SHUFFLE(x, y, ...) __builtin_shuffle(x, y, decltype((x) == (y)){__VA_ARGS__})
#endif
"""


def transpose(lanes: int, rows: int, name: str) -> str:
    """name(v): `rows` vectors v[0] ... v[rows-1] transposed in log2(rows) stages of shuffles; rows is a power of two.

    Before, v[i] holds row i: lanes / rows groups of `rows` columns. After, v[i] holds column i of each group in turn.
    """
    names = [f"v{i}" for i in range(rows)]
    body = [f"V {', '.join(f'{name} = v[{i}]' for i, name in enumerate(names))}, x;"]
    for h, _, _ in swap_masks(lanes):
        for i in range(rows):
            if h < rows and not i & h:
                body.append(f"x = low{h}(v{i}, v{i + h}); v{i + h} = high{h}(v{i}, v{i + h}); v{i} = x;")
    body += [f"v[{i}] = {name};" for i, name in enumerate(names)]
    return f"static inline void {name}(V* v) {{\n" + lines(2, body) + "}\n"


def dot(mr: int, columns: int, lanes: int, unroll: int) -> str:
    """mr x columns dot products along a contiguous K: o[i * o_m + j] = sum over k of a[i, k] * b[j, k].

    `columns` is a power of two, at most `lanes`. The sums of one row are added across lanes by a tree of shuffles and
    written as one vector whose first `columns` lanes count. Per vector of k: mr * columns FMAs for mr + columns loads.
    """
    body = [f"const V b{j} = to_b(fetch(b + {j} * b_n + p * W));" for j in range(columns)]
    tail = [f"const V b{j} = to_b(fetch_n(b + {j} * b_n + p * W, rest));" for j in range(columns)]
    for i in range(mr):
        macs = " ".join(f"mac(c{i}_{j}, x, b{j});" for j in range(columns))
        body.append(f"{{ const V x = fetch(a + {i} * a_m + p * W); {macs} }}")
        tail.append(f"{{ const V x = fetch_n(a + {i} * a_m + p * W, rest); {macs} }}")
    return (
        f"static void dot{mr}x{columns}"
        "(const PA* a, long a_m, const SB* b, long b_n, long k, T* o, long o_m) {\n"
        + lines(2, accumulators(mr, columns) + ["long p = 0;", *unroll_pragma(unroll), "for (; p < k / W; ++p) {"])
        + lines(4, body)
        + lines(2, ["}", "if (const long rest = k % W) {"])
        + lines(4, tail)
        + lines(2, ["}", *(line for i in range(mr) for line in add_across(i, columns, lanes))])
        + "}\n"
    )


def add_across(row: int, columns: int, lanes: int) -> list[str]:
    """Statements that add c{row}_0 ... across their lanes and store them: a tree over the columns, then the lanes."""
    statements = []
    h = columns // 2
    while h:
        statements += [
            f"c{row}_{j} = low{h}(c{row}_{j}, c{row}_{j + h}) + high{h}(c{row}_{j}, c{row}_{j + h});" for j in range(h)
        ]
        h //= 2
    h = columns
    while h < lanes:
        statements.append(f"c{row}_0 += high{h}(c{row}_0, c{row}_0);")
        h *= 2
    return [*statements, f"store(o + {row} * o_m, c{row}_0);"]


def update(mr: int, depth: int) -> str:
    """A rank-`depth` update of mr rows of sums: sums[i, j] += sum over u < depth of a[i, u] * b[u, j], for j < cols.

    Per vector of columns: mr * depth FMAs for depth loads of B and mr loads and stores of sums (in L1).
    """
    scalars = [f"const V x{i}_{u} = broadcast(value(a[{i} * a_m + {u} * a_k]));" for i in range(mr) for u in range(depth)]

    def step(load: str) -> list[str]:
        body = [f"const V b{u} = {load.format(u=u)};" for u in range(depth)]
        for i in range(mr):
            macs = " ".join(f"mac(c, x{i}_{u}, b{u});" for u in range(depth))
            body.append(f"{{ T* o = sums + {i} * stride + j; V c = load(o); {macs} store(o, c); }}")
        return body

    return (
        f"static void update{mr}x{depth}"
        "(const S* a, long a_m, long a_k, const SB* b, long b_k, long cols, T* sums, long stride) {\n"
        + lines(2, [*scalars, "long j = 0;", "for (; j + L <= cols; j += L) {"])
        + lines(4, step("load(b + {u} * b_k + j)"))
        + lines(2, ["}", "if (j < cols) {"])
        + lines(4, step("load_n(b + {u} * b_k + j, cols - j)"))
        + lines(2, ["}"])
        + "}\n"
    )
