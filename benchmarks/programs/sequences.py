"""Small networks of sequences, graphs, points and tables: blocks of Transformers, recurrent cells written by hand, and others."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.programs.chains import attention, causal


class Heads(nn.Module):
    """Multi-head attention written by hand, over `x` or what it is shown."""

    def __init__(self, width: int, count: int, later: bool = True) -> None:
        super().__init__()
        self.count, self.later = count, later
        self.query, self.pair, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, shown: Tensor | None = None) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (self.count, -1)).transpose(1, 2)

        keys, values = self.pair(x if shown is None else shown).chunk(2, -1)
        found = (attention if self.later else causal)(split(self.query(x)), split(keys), split(values))
        result: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """Norm first, attention, norm, two linears."""

    def __init__(self, width: int = 128, count: int = 4, later: bool = True) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = Heads(width, count, later)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.heads(self.norm1(x))
        result: Tensor = x + self.inner(self.norm2(x))
        return result


class Patches(nn.Module):
    """A vision Transformer of two blocks."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.cut, self.first = nn.Conv2d(3, width, 8, 8), nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 26, width))
        self.blocks, self.last = nn.Sequential(Block(width), Block(width)), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.cut(x).flatten(2).transpose(1, 2)
        y = torch.cat((self.first.expand(len(y), -1, -1), y), 1) + self.places
        result: Tensor = self.last(self.blocks(y)[:, 0])
        return result


class Windows(nn.Module):
    """Attention in shifted windows, with a bias for each distance."""

    def __init__(self, width: int = 64, side: int = 7, count: int = 4) -> None:
        super().__init__()
        self.side, self.count = side, count
        self.all, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.randn((2 * side - 1) ** 2, count))
        at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
        apart = (at[:, :, None] - at[:, None]) + side - 1
        self.register_buffer("apart", apart[0] * (2 * side - 1) + apart[1])

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        n = self.side
        y = self.norm(x).roll((-n // 2, -n // 2), (1, 2))
        y = y.view(b, h // n, n, w // n, n, c).transpose(2, 3).reshape(-1, n * n, c)
        q, k, v = self.all(y).unflatten(-1, (3, self.count, -1)).permute(2, 0, 3, 1, 4)
        bias = self.bias[self.apart].permute(2, 0, 1)  # type: ignore[index]
        y = ((q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v).transpose(1, 2).flatten(2)
        y = self.out(y).view(b, h // n, w // n, n, n, c).transpose(2, 3).reshape(b, h, w, c)
        return x + y.roll((n // 2, n // 2), (1, 2))


class Mixer(nn.Module):
    """Linears over places and over channels in turns."""

    def __init__(self, places: int = 49, width: int = 96) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.over = nn.Sequential(nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places))
        self.along = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over(self.norm1(x).mT).mT
        result: Tensor = x + self.along(self.norm2(x))
        return result


def rotated(x: Tensor) -> Tensor:
    """Rotary positions: [..., length, width]."""
    half = x.shape[-1] // 2
    rates = 10_000.0 ** (-torch.arange(half, device=x.device, dtype=x.dtype) / half)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=x.dtype)[:, None] * rates
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


class Rotary(nn.Module):
    """A decoder's block of today: RMS norms, rotary positions, keys shared by heads, a gated inner layer."""

    def __init__(self, width: int = 128, count: int = 8, few: int = 2) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.few, self.size = few, width // count
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.pair = nn.Linear(width, 2 * few * self.size, bias=False)
        self.gate, self.down = nn.Linear(width, 6 * width, bias=False), nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q = self.query(y).unflatten(-1, (-1, self.size)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.few, self.size)).transpose(1, 2) for t in self.pair(y).chunk(2, -1))
        times = q.shape[1] // self.few
        k, v = rotated(k).repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        x = x + self.out(causal(rotated(q), k, v).transpose(1, 2).flatten(2))
        a, b = self.gate(self.norm2(x)).chunk(2, -1)
        result: Tensor = x + self.down(F.silu(a) * b)
        return result


class Text(nn.Module):
    """A small language model with its loss."""

    def __init__(self, words: int = 301, width: int = 96) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(128, width)
        self.blocks, self.norm = nn.Sequential(Block(width, 4, False), Block(width, 4, False)), nn.LayerNorm(width)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        logits = self.norm(self.blocks(x)) @ self.words.weight.t()
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())


class Memory(nn.Module):
    """Learned queries read a long input by cross attention, then think among themselves."""

    def __init__(self, width: int = 64, count: int = 16) -> None:
        super().__init__()
        self.queries, self.read, self.think = nn.Parameter(torch.randn(1, count, width)), Heads(width, 4), Block(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.queries.expand(len(x), -1, -1)
        result: Tensor = self.think(y + self.read(y, x))
        return result


class Experts(nn.Module):
    """A mixture of four experts, each token weighted by the best two."""

    def __init__(self, width: int = 64, count: int = 4) -> None:
        super().__init__()
        self.route = nn.Linear(width, count)
        self.up, self.down = (
            nn.Parameter(torch.randn(count, width, 2 * width) / 8),
            nn.Parameter(torch.randn(count, 2 * width, width) / 11),
        )

    def forward(self, x: Tensor) -> Tensor:
        best, which = self.route(x).topk(2, -1)
        weights = torch.zeros_like(self.route(x)).scatter(-1, which, best.softmax(-1))
        each = torch.einsum("enh,ehw->enw", F.gelu(torch.einsum("nw,ewh->enh", x, self.up)), self.down)
        return torch.einsum("ne,enw->nw", weights, each)


# recurrent cells written by hand ---------------------------------------------------------------------------------------------


class Plain(nn.Module):
    """h = tanh(linear(cat(x, h))), unrolled."""

    def __init__(self, given: int = 33, width: int = 65) -> None:
        super().__init__()
        self.width, self.step, self.last = width, nn.Linear(given + width, width), nn.Linear(width, 9)

    def forward(self, x: Tensor) -> Tensor:
        h, found = x.new_zeros(x.shape[1], self.width), []
        for now in x:
            h = torch.tanh(self.step(torch.cat((now, h), 1)))
            found.append(self.last(h))
        return torch.stack(found)


class Gated(nn.Module):
    """GRU cells, unrolled."""

    def __init__(self, given: int = 32, width: int = 64) -> None:
        super().__init__()
        self.x, self.h, self.width = nn.Linear(given, 3 * width), nn.Linear(width, 3 * width), width

    def forward(self, x: Tensor) -> Tensor:
        h, own = x.new_zeros(x.shape[1], self.width), self.x(x)
        for now in own:
            (r, z, n), (hr, hz, hn) = now.chunk(3, -1), self.h(h).chunk(3, -1)
            z = torch.sigmoid(z + hz)
            h = (1 - z) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + z * h
        return h


class Long(nn.Module):
    """LSTM cells, unrolled, there and back where `both`."""

    def __init__(self, given: int = 32, width: int = 64, both: bool = False) -> None:
        super().__init__()
        self.width = width
        self.own = nn.ModuleList(nn.Linear(given, 4 * width) for _ in range(1 + both))
        self.back = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(1 + both))

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for way, (own, back) in enumerate(zip(self.own, self.back, strict=True)):
            h = c = x.new_zeros(x.shape[1], self.width)
            for now in own(x.flip(0) if way else x):
                i, f, g, o = (now + back(h)).chunk(4, -1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
            found.append(h)
        return torch.cat(found, -1)


class Selective(nn.Module):
    """A selective state space, scanned step by step."""

    def __init__(self, width: int = 32, states: int = 8) -> None:
        super().__init__()
        self.told, self.rate = nn.Linear(width, 2 * states), nn.Linear(width, width)
        self.decay = nn.Parameter(torch.rand(width, states))

    def forward(self, x: Tensor) -> Tensor:
        rate, (into, out) = F.softplus(self.rate(x)), self.told(x).chunk(2, -1)
        kept = torch.exp(-rate[..., None] * self.decay.exp())
        given = (rate * x)[..., None] * into[:, :, None]
        state, found = torch.zeros_like(kept[:, 0]), []
        for t in range(x.shape[1]):
            state = kept[:, t] * state + given[:, t]
            found.append((state * out[:, t, None]).sum(-1))
        return torch.stack(found, 1)


class Dilated(nn.Module):
    """Gated causal convolutions of a signal, each twice as wide as the last, with what each adds to the result."""

    def __init__(self, width: int = 32, count: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**k) for k in range(count))
        self.mix = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for k, (layer, mix) in enumerate(zip(self.layers, self.mix, strict=True)):
            a, b = layer(F.pad(x, (2**k, 0))).chunk(2, 1)
            added = mix(torch.tanh(a) * torch.sigmoid(b))
            x, total = x + added, total + added
        return F.relu(total)


# graphs, points, tables ------------------------------------------------------------------------------------------------------


class Neighbours(nn.Module):
    """Means over neighbours, twice."""

    def __init__(self, width: int = 33) -> None:
        super().__init__()
        self.own, self.theirs = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        count = x.new_zeros(len(x)).index_add(0, target, x.new_ones(target.shape)).clamp(min=1)[:, None]
        for _ in range(2):
            mean = torch.zeros_like(x).index_add(0, target, x[source]) / count
            x = F.relu(self.own(x) + self.theirs(mean))
        return x


class Attending(nn.Module):
    """Attention over the edges of a graph: a softmax for each target."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.lift, self.score = nn.Linear(width, width), nn.Linear(2 * width, 1)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        y = self.lift(x)
        scores = F.leaky_relu(self.score(torch.cat((y[source], y[target]), -1)), 0.2)[:, 0]
        most = scores.new_full((len(x),), -1e9).scatter_reduce(0, target, scores, "amax")
        weights = torch.exp(scores - most[target])
        total = weights.new_zeros(len(x)).index_add(0, target, weights)
        return torch.zeros_like(y).index_add(0, target, y[source] * (weights / total[target])[:, None])


class Points(nn.Module):
    """A network of point sets: linears of each point, the maximum over all."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(
            nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 128, 1), nn.BatchNorm1d(128), nn.ReLU()
        )
        self.last = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 9))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.each(x).amax(-1)).log_softmax(-1)
        return result


class Tables(nn.Module):
    """A recommender: embeddings of several tables, products of all pairs of them, two networks of linears."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in (99, 501, 33))
        self.below = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        self.above = nn.Sequential(nn.Linear(width + 6, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        dense = self.below(numbers)
        all_of = torch.stack([dense, *(table(words[:, k]) for k, table in enumerate(self.tables))], 1)
        pairs = all_of @ all_of.mT
        rows, columns = torch.triu_indices(4, 4, 1, device=numbers.device)
        return torch.sigmoid(self.above(torch.cat((dense, pairs[:, rows, columns]), 1)))


class Rays(nn.Module):
    """A radiance field: sines of positions, linears with a skip, then composited along rays."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(39, width), nn.Linear(width + 39, width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        scaled = x[..., None] * 2.0 ** torch.arange(6, device=x.device)
        seen = torch.cat((x, scaled.sin().flatten(-2), scaled.cos().flatten(-2)), -1)
        y = F.relu(self.second(torch.cat((F.relu(self.first(seen)), seen), -1)))
        colour, density = self.last(y).split((3, 1), -1)
        hit = 1 - torch.exp(-F.relu(density) * 0.1)
        clear = torch.cumprod(torch.cat((torch.ones_like(hit[:, :1]), 1 - hit[:, :-1]), 1), 1)
        return (hit * clear * colour.sigmoid()).sum(1)


def perceptron(*widths: int) -> nn.Module:
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


__all__ = [
    "Attending",
    "Block",
    "Dilated",
    "Experts",
    "Gated",
    "Heads",
    "Long",
    "Memory",
    "Mixer",
    "Neighbours",
    "Patches",
    "Plain",
    "Points",
    "Rays",
    "Rotary",
    "Selective",
    "Tables",
    "Text",
    "Windows",
    "perceptron",
]
