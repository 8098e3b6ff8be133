"""A small Llama, and linear layers with weights in 8 and 4 bits, as quantised models write them."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FP8, FP8_LARGEST = torch.float8_e4m3fn, 448.0
INT4: Any = vars(torch)["int4"]


def rounded(x: Tensor, largest: float, least: float = 1e-8) -> tuple[Tensor, Tensor]:
    """The rows of `x` divided by a scale each, so that none exceeds `largest`, and the scales [..., 1], in float32."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp(min=least) / largest
    return wide / scale, scale


class Quantised(nn.Module):
    """A Linear without a bias; its weight [out, in] with a scale for each output channel [out, 1]."""

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        numbers, scale = self.divided(linear.weight.detach())
        self.register_buffer("weight", numbers)
        self.register_buffer("scale", scale)

    @staticmethod
    def divided(weight: Tensor) -> tuple[Tensor, Tensor]:
        numbers, scale = rounded(weight, 127)
        return numbers.round().to(torch.int8), scale.to(weight.dtype)

    def full(self) -> Tensor:
        """The weight that the layer stands for, in float64."""
        return self.weight.double() * self.scale.double()


class Int8Weights(Quantised):
    """Activations as they are; the scale multiplies the sums."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype)) * self.scale.t()


class Int8Dequantised(Quantised):
    """Activations as they are; the scale multiplies the weight."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype) * self.scale)


class Int8Packed(Quantised):
    """ATen's operator for them, which takes bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        rows = torch._weight_int8pack_mm(x.flatten(0, -2), self.weight, self.scale.flatten())
        return rows.unflatten(0, x.shape[:-1])


class Int8Dynamic(Quantised):
    """Activations are rounded to int8 too, with a scale for each row."""

    def forward(self, x: Tensor) -> Tensor:
        numbers, scale = rounded(x.flatten(0, -2), 127)
        sums = torch._int_mm(numbers.round().to(torch.int8), self.weight.t())
        return (sums.float() * (scale * self.scale.float().t())).to(x.dtype).unflatten(0, x.shape[:-1])


class Int4Groups(Quantised):
    """Two numbers from 0 to 15 a byte, the low half first, that stand for -8 to 7; a scale for each group along the inputs."""

    GROUP = 32

    @classmethod
    def divided(cls, weight: Tensor) -> tuple[Tensor, Tensor]:
        numbers, scale = rounded(weight.unflatten(1, (-1, cls.GROUP)), 7)
        bits = (numbers.round().to(torch.int8) + 8).to(torch.uint8).flatten(1)
        return bits[:, ::2] | bits[:, 1::2] << 4, scale.to(weight.dtype)

    def numbers(self) -> Tensor:
        """[out, groups, numbers of a group], from 0 to 15."""
        return torch.stack([self.weight & 15, self.weight >> 4], -1).reshape(self.weight.shape[0], -1, self.GROUP)

    def full(self) -> Tensor:
        return ((self.numbers().double() - 8) * self.scale.double()).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, ((self.numbers().to(x.dtype) - 8) * self.scale).flatten(1))


class Int4Packed(Int4Groups):
    """ATen's operator for them, on weights in the form that it wants, which takes bfloat16."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        packed, self.operator = self.packed()
        self.register_buffer("packed_weight", packed)
        scales = self.scale[..., 0].t().contiguous()  # [groups, out]
        self.register_buffer("scales_and_zeros", torch.stack([scales, torch.zeros_like(scales)], -1))

    def packed(self) -> tuple[Tensor, Callable[..., Tensor]]:
        """The weight, and the operator that takes it."""
        numbers = self.numbers().flatten(1).int()
        if numbers.device.type == "cpu":
            return torch._convert_weight_to_int4pack_for_cpu(numbers, 1), torch._weight_int4pack_mm_for_cpu
        by_bytes = (numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8)
        return torch._convert_weight_to_int4pack(by_bytes, 8), torch._weight_int4pack_mm

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() > 2:
            return self(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        return self.operator(x, self.packed_weight, self.GROUP, self.scales_and_zeros)


class Int4PackedLargeGroups(Int4Packed):
    """A scale for 128 inputs, as models have it that were quantised with GPTQ or AWQ."""

    GROUP = 128


class Float8Dynamic(Quantised):
    """8-bit floats with a scale for each row of the activations and each output channel. Its results are bfloat16."""

    @staticmethod
    def divided(weight: Tensor) -> tuple[Tensor, Tensor]:
        numbers, scale = rounded(weight, FP8_LARGEST)
        return numbers.to(FP8), scale

    def forward(self, x: Tensor) -> Tensor:
        numbers, scale = rounded(x.flatten(0, -2), FP8_LARGEST)
        rows = torch._scaled_mm(numbers.to(FP8), self.weight.t(), scale, self.scale.t(), out_dtype=torch.bfloat16)
        return rows.unflatten(0, x.shape[:-1]).to(x.dtype)


LAYERS: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "int8 weights": Int8Weights, "int8 dequantised": Int8Dequantised, "int8 packed": Int8Packed, "int8 dynamic": Int8Dynamic,
    "int4 groups": Int4Groups, "int4 packed": Int4Packed, "int4 packed, groups of 128": Int4PackedLargeGroups,
    "float8 dynamic": Float8Dynamic,
}  # fmt: skip


def _tile_packed(q: Any) -> Any:
    return q.Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d")


TORCHAO: dict[str, dict[str, Callable[[Any], Any]]] = {
    "cpu": {
        "torchao's int8 dynamic": lambda q: q.Int8DynamicActivationInt8WeightConfig(),
        "torchao's int8 weights": lambda q: q.Int8WeightOnlyConfig(),
        "torchao's int4 weights": lambda q: q.IntxWeightOnlyConfig(weight_dtype=INT4, granularity=q.PerGroup(32)),
        "torchao's float8 weights": lambda q: q.Float8WeightOnlyConfig(),
    },
    "cuda": {
        "torchao's int8 dynamic": lambda q: q.Int8DynamicActivationInt8WeightConfig(),
        "torchao's int8 weights": lambda q: q.Int8WeightOnlyConfig(),
        "torchao's int4 weights": _tile_packed,
        "torchao's float8 weights": lambda q: q.Float8WeightOnlyConfig(),
        "torchao's float8 dynamic": lambda q: q.Float8DynamicActivationFloat8WeightConfig(granularity=q.PerRow()),
    },
}
"""The configs of torchao's `quantize_` on each device, made by its module `torchao.quantization`."""


def quantise_by_torchao(model: nn.Module, config: Callable[[Any], Any]) -> nn.Module:
    """`model`, its linear layers quantised by torchao. Raises ImportError without it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantization = importlib.import_module("torchao.quantization")

        quantization.quantize_(model, config(quantization))
    return model


def quantise(model: nn.Module, layer: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """`model` with each Linear in it replaced by `layer` of it."""
    for name, child in model.named_children():
        setattr(model, name, layer(child) if isinstance(child, nn.Linear) else quantise(child, layer))
    return model


class Attention(nn.Module):
    """Causal attention of `heads` query heads over half as many of keys and values, turned by position."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.q, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, width // 2, bias=False) for _ in range(2))

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = (self.turned(each, turn) for each in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    @staticmethod
    def turned(x: Tensor, turn: Tensor) -> Tensor:
        """Pairs of halves of `x` turned by the angles `turn` [length, size / 2]."""
        first, second = x.chunk(2, -1)
        sine, cosine = turn.sin().to(x.dtype), turn.cos().to(x.dtype)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        x = x + self.attention(self.before(x), turn)
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Hidden states [batch, length, width] of tokens [batch, length]."""

    def __init__(self, words: int = 96, width: int = 128, heads: int = 4, inner: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.size = width // heads
        self.tokens = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        speeds = 10000.0 ** (-torch.arange(0, self.size, 2, device=x.device) / self.size)
        turn = torch.arange(tokens.shape[1], device=x.device)[:, None] * speeds
        for block in self.blocks:
            x = block(x, turn)
        return self.norm(x)


__all__ = ["LAYERS", "TORCHAO", "Int4Packed", "Llama", "Quantised", "quantise", "quantise_by_torchao"]
