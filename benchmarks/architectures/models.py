"""The table: a model's name in the library, what its configuration says beside the sizes that all have, and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from benchmarks.programs.program import Draw, Program

WORDS = 67
TEXT: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
KEYS = {"num_key_value_heads": 2}
IMAGE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
SOUND: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": (16, 16),
    "conv_kernel": (8, 4),
    "conv_stride": (4, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}

Inputs = Callable[[Draw], dict[str, Tensor]]


def words(batch: int = 3, length: int = 21) -> Inputs:
    return lambda d: {"input_ids": d.whole(WORDS, batch, length, low=3)}


def pairs(d: Draw) -> dict[str, Tensor]:
    return {"input_ids": d.whole(WORDS, 2, 13, low=3), "decoder_input_ids": d.whole(WORDS, 2, 9, low=3)}


def pixels(height: int = 32, width: int = 32) -> Inputs:
    return lambda d: {"pixel_values": d.x(2, 3, height, width)}


def sound(d: Draw) -> dict[str, Tensor]:
    return {"input_values": d.x(2, 801)}


def spectrum(d: Draw) -> dict[str, Tensor]:
    return {"input_features": d.x(2, 16, 60), "decoder_input_ids": d.whole(WORDS, 2, 9, low=3)}


def captioned(d: Draw) -> dict[str, Tensor]:
    return {"input_ids": d.whole(WORDS, 2, 11, low=3), "pixel_values": d.x(2, 3, 32, 32)}


class Plain(nn.Module):
    """A model of the library whose results are tensors alone: those called so, or all."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        results = self.model(**dict(zip(self.names, inputs, strict=True)), return_dict=True)
        return tuple(value for value in results.values() if isinstance(value, Tensor))


class Loss(Plain):
    """The mean square of the first result."""

    def forward(self, *inputs: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(*inputs)[0].square().mean()


def model(kind: str, settings: Mapping[str, Any], inputs: Inputs, training: bool = False) -> Callable[[Draw], Any]:
    """Gradients are taken without dropout, which would draw other numbers in float64."""

    def make(d: Draw) -> tuple[nn.Module, tuple[Tensor, ...]]:
        from transformers import AutoConfig, AutoModel

        given = inputs(d)
        config = AutoConfig.for_model(kind, **settings)
        config.use_cache, config._experts_implementation = False, "eager"

        def build() -> nn.Module:
            made = AutoModel.from_config(config, attn_implementation="eager")
            return (Loss if training else Plain)(made, tuple(given))

        return d.module(build), tuple(given.values())

    return make


LAYERS = {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 2, 1]}
HALVES: dict[str, Any] = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
TEXTS: dict[str, dict[str, Any]] = {
    "bert": TEXT,
    "roberta": TEXT,
    "electra": {**TEXT, "embedding_size": 24},
    "albert": {**TEXT, "embedding_size": 24},
    "distilbert": {
        "vocab_size": WORDS,
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 48,
        "max_position_embeddings": 64,
    },
    "deberta-v2": {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 16},
    "mpnet": TEXT,
    "nystromformer": {**TEXT, "num_landmarks": 4, "segment_means_seq_len": 20},
    "roformer": {**TEXT, "embedding_size": 32},
    "squeezebert": {**TEXT, "embedding_size": 32},
    "convbert": {**TEXT, "embedding_size": 32},
    "fnet": TEXT,
    "gpt2": {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neo": {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 8,
        "max_position_embeddings": 64,
    },
    "gpt_neox": TEXT,
    "gptj": {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4},
    "opt": {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 64,
    },
    "bloom": {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "llama": {**TEXT, **KEYS},
    "mistral": {**TEXT, **KEYS},
    "mixtral": {**TEXT, **KEYS, "num_local_experts": 4},
    "qwen2": {**TEXT, **KEYS},
    "qwen3": {**TEXT, **KEYS, "head_dim": 8},
    "gemma2": {**TEXT, **KEYS, "head_dim": 8},
    "phi": TEXT,
    "phi3": {**TEXT, **KEYS},
    "falcon": TEXT,
    "stablelm": {**TEXT, **KEYS},
    "olmo2": {**TEXT, **KEYS},
    "cohere": {**TEXT, **KEYS},
    "mamba": {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
}
IMAGES: dict[str, tuple[dict[str, Any], Inputs]] = {
    "vit": (IMAGE, pixels()),
    "deit": (IMAGE, pixels()),
    "beit": (IMAGE, pixels()),
    "dinov2": (IMAGE, pixels()),
    "swin": (
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        pixels(),
    ),
    "convnext": (LAYERS, pixels(40, 36)),
    "convnextv2": (LAYERS, pixels(40, 36)),
    "resnet": ({**LAYERS, "embedding_size": 16, "layer_type": "basic"}, pixels(40, 36)),
    "regnet": ({**LAYERS, "embedding_size": 16, "groups_width": 8}, pixels(40, 36)),
    "mobilenet_v2": ({"depth_multiplier": 0.25}, pixels(40, 36)),
    "mobilenet_v1": ({"depth_multiplier": 0.25}, pixels(40, 36)),
    "poolformer": ({**LAYERS, "num_encoder_blocks": 4}, pixels(64, 64)),
    "segformer": ({**LAYERS, "decoder_hidden_size": 16}, pixels(64, 64)),
    "mobilevit": (
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32]},
        pixels(64, 64),
    ),
}
OTHERS: dict[str, tuple[dict[str, Any], Inputs]] = {
    "t5": (
        {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "pad_token_id": 0},
        pairs,
    ),
    "bart": (HALVES, pairs),
    "pegasus": (HALVES, pairs),
    "marian": ({**HALVES, "decoder_start_token_id": 1}, pairs),
    "wav2vec2": (SOUND, sound),
    "hubert": (SOUND, sound),
    "whisper": (
        {
            **HALVES,
            "num_mel_bins": 16,
            "max_source_positions": 30,
            "max_target_positions": 20,
            "decoder_start_token_id": 1,
        },
        spectrum,
    ),
    "clip": (
        {
            "text_config": {**TEXT, "projection_dim": 16},
            "vision_config": {**IMAGE, "projection_dim": 16},
            "projection_dim": 16,
        },
        captioned,
    ),
}
LENGTHS = {"nystromformer": 20}
"""Tokens of those that take a multiple of something."""
LEARN = (
    "bert",
    "gpt2",
    "llama",
    "deberta-v2",
    "mixtral",
    "mamba",
    "t5",
    "vit",
    "swin",
    "convnext",
    "resnet",
    "wav2vec2",
)
"""Those whose gradients are taken too."""


def _rows() -> Iterator[Program]:
    texts = {kind: (settings, words(length=LENGTHS.get(kind, 21))) for kind, settings in TEXTS.items()}
    for family, table in (("text", texts), ("image", IMAGES), ("other", OTHERS)):
        for kind, (settings, inputs) in table.items():
            yield Program(kind, "network", family, model(kind, settings, inputs))
            if kind in LEARN:
                yield Program(
                    f"{kind}, training", "network", family, model(kind, settings, inputs, training=True), training=True
                )


MODELS = {program.name: program for program in _rows()}

__all__ = ["MODELS"]
