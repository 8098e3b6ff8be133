"""The register tile: a block of C whose sums all stay in registers while one k after the other is multiplied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from polytile.matmul.cpp.side_by_side import whole
from polytile.matmul.cpp.unroll import accumulators, lines, unroll_pragma

Access = Literal["rows", "cols", "both"]
"""How a tile reads A: its k contiguous; its rows contiguous, or a packed tile whose a_k is mr; neither."""


@dataclass(frozen=True)
class Tile:
    """o[i, j] = (o[i, j] +) sum over k of a[i, k] * b[k, j], i < mr, j < nv * L.

    Registers: mr * nv sums, nv of B, one of A. Per k: mr * nv FMAs, nv loads, mr broadcasts.

    ahead       steps ahead of which B is prefetched: of a B read in place whose rows lie too far apart for the hardware to guess
    head        what the sums of each row begin at lies before the tile of A
    prepacked   of prepacked panels each vector of columns runs along k by itself, and `b_k` is how far the next one lies
    in_place    > 1: a step takes so many rows of a B that is not packed, whose number is then what `steps` counts, and brings
                them side by side
    chain       how many products are added up in a row before they are added to the sums so far, in `o`; 0: any number
    scaled      each chain's sums are multiplied by the scales of their columns, at `next.scales` and then `next.apart` further on
    zeros       what is subtracted from each element of B lies as far behind `next.zeros`
    next_panel  the tile fetches a part of the panel that comes next, `next.pace` bytes a step, into the second-level cache
    """

    mr: int
    nv: int
    access: Access
    unroll: int
    ahead: int = 0
    head: bool = False
    prepacked: bool = False
    in_place: int = 1
    next_panel: bool = False
    chain: int = 0
    scaled: bool = False
    zeros: bool = False

    def function(self) -> str:
        """The C++ function tile{mr}x{nv}."""
        points = [(i, j) for i in range(self.mr) for j in range(self.nv)]
        start = "broadcast(a[{i}])" if self.head else "{{}}"
        past_head = [f"a += {self.mr};"] if self.head else []
        deep = 4 if self.chain else 2
        return (
            f"static void tile{self.mr}x{self.nv}"
            "(const PA* a, long a_m, long a_k, const PB* b, long b_k, long steps, T* o, long o_m, bool add, Next next) {\n"
            + lines(2, self._chains())
            + lines(deep, accumulators(self.mr, self.nv, start) + past_head)
            + lines(deep, self._by_column("z", "zeros") if self.zeros else [])
            + lines(deep, [*([] if self.chain else self._pointers()), *unroll_pragma(self.unroll), self._loop()])
            + lines(deep + 2, [*self._loads(), *self._products(), *self._prefetches(), self._advance()])
            + lines(deep, ["}", *self._scales(), "if (add) {"])
            + lines(deep + 2, [f"c{i}_{j} += load(o + {i} * o_m + {j} * L);" for i, j in points])
            + lines(deep, ["}", *(f"store(o + {i} * o_m + {j} * L, c{i}_{j});" for i, j in points)])
            + lines(2, ["}"] if self.chain else [])
            + "}\n"
        )

    def _chains(self) -> list[str]:
        """The loop over runs of k, one at least, of which each is added to what is in `o`."""
        if not self.chain:
            return []
        loop = "for (long p = 0, end, first = 1; first || p < steps; first = 0, add = true) {"
        return [*self._pointers(), loop, f"  end = least(p + {self.chain}, steps);"]

    def _scales(self) -> list[str]:
        """The chain's sums times the scales of their columns; of the last vector the first `next.columns - j * L` count."""
        if not self.scaled:
            return []
        products = [" ".join(f"c{i}_{j} *= s{j};" for j in range(self.nv)) for i in range(self.mr)]
        return [*self._by_column("s", "scales"), *products]

    def _by_column(self, letter: str, member: str) -> list[str]:
        """Vectors s0, s1, ... of what `next` has for the columns of this group, and on to the next group."""
        loads = [
            f"const V {letter}{j} = next.columns >= {j + 1} * L ? load(next.{member} + {j} * L)"
            f" : load_n(next.{member} + {j} * L, next.columns - {j} * L);"
            for j in range(self.nv)
        ]
        return [*loads, f"next.{member} += next.apart;"]

    def _pointers(self) -> list[str]:
        return [] if self.access == "cols" else [f"const PA* a{i} = a + {i} * a_m;" for i in range(self.mr)]

    def _loop(self) -> str:
        if self.in_place > 1:
            return f"for (long left = steps; left > 0; left -= {self.in_place}) {{"
        return "for (; p < end; ++p) {" if self.chain else "for (long p = 0; p < steps; ++p) {"

    def _loads(self) -> list[str]:
        """One step of B: b0 ... b{nv-1}."""
        if self.in_place == 1:
            apart = "b_k" if self.prepacked else "L"
            less = " - z{j}" if self.zeros else ""
            return [f"const V b{j} = load(b + {j} * {apart}){less.format(j=j)};" for j in range(self.nv)]
        if not whole(self.in_place, self.nv):
            return [f"const V b{j} = to_b(columns(b + {j} * L, b_k, left));" for j in range(self.nv)]
        rows = [f"V row[{self.nv}];", "side_by_side(b, b_k, left, row);"]
        return rows + [f"const V b{j} = row[{j}];" for j in range(self.nv)]

    def _products(self) -> list[str]:
        """Each row's element of A times the step of B, added to the row's sums."""
        element = {"rows": "a{i}[p]", "cols": "a[{i}]", "both": "*a{i}"}[self.access]
        rows = []
        for i in range(self.mr):
            macs = " ".join(f"mac(c{i}_{j}, x, b{j});" for j in range(self.nv))
            rows.append(f"{{ const V x = broadcast(value({element.format(i=i)})); {macs} }}")
        return rows

    def _prefetches(self) -> list[str]:
        ahead = [f"__builtin_prefetch(b + {self.ahead} * b_k + {j} * L);" for j in range(self.nv)] if self.ahead else []
        return ahead + (["__builtin_prefetch(next.at, 0, 2); next.at += next.pace;"] if self.next_panel else [])

    def _advance(self) -> str:
        step = "L" if self.prepacked else "b_k" if self.in_place == 1 else f"{self.in_place} * b_k"
        both = " ".join(f"a{i} += a_k;" for i in range(self.mr))
        a = {"rows": "", "cols": "a += a_k;", "both": both}[self.access]
        return f"b += {step}; {a}".rstrip()


NEXT = "struct Next { const char* at; long pace; };  // memory that a tile fetches, and how many bytes of it in each step\n"
SCALED_NEXT = """\
// Memory that a tile fetches, and how many bytes of it in each step; the scales and zeros of its columns, and
// how far behind those of the next group are.
struct Next { const char* at; long pace; const float *scales, *zeros; long apart, columns; };
"""


TYPE = "typedef void (*Tile)(const PA*, long, long, const PB*, long, long, T*, long, bool, Next);\n"


def next_of(tile: Tile) -> str:
    """What a tile is told beside its operands."""
    return SCALED_NEXT if tile.scaled else NEXT


def tiles(tile: Tile) -> tuple[str, tuple[list[str], list[str]]]:
    """Every row tail of the tile, in full width and one vector wide; and the names of the tiles in each width."""
    every = range(1, tile.mr + 1)
    widths = (tile.nv, 1) if tile.nv > 1 else (tile.nv,)
    text = next_of(tile) + "".join(replace(tile, mr=rows, nv=width).function() for width in widths for rows in every)
    wide, narrow = ([f"tile{rows}x{width}" for rows in every] for width in (tile.nv, 1))
    return text, (wide, narrow)
