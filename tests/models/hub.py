"""Models of the transformers library at small width, with random weights: BERT, GPT-2, Llama, T5 and ViT."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tests.models.zoo import Model, normal, tokens

SMALL: dict[str, Any] = {
    "vocab_size": 67, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
SURE: dict[str, Any] = {"attn_implementation": "eager"}


class Results(nn.Module):
    """A model of the library without its container of results: the tensors called `names`, or all results."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor, **named: Tensor) -> tuple[Tensor, ...]:
        results = self.model(*inputs, **named)
        return tuple(results[name] for name in self.names)


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(**SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **SURE)
    return Results(BertModel(config), "last_hidden_state", "pooler_output")


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=67, n_embd=32, n_layer=2, n_head=4, n_positions=128, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **SURE,
    )  # fmt: skip
    return Results(GPT2LMHeadModel(config), "logits")


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SMALL, num_key_value_heads=2, max_position_embeddings=128, use_cache=False, **SURE)
    return Results(LlamaForCausalLM(config), "logits")


class Translator(nn.Module):
    """T5 whose decoder reads what its encoder reads, the other way round."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import T5Config, T5ForConditionalGeneration

        config = T5Config(
            vocab_size=67, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0, use_cache=False,
            decoder_start_token_id=0, pad_token_id=0,
        )  # fmt: skip
        self.model = T5ForConditionalGeneration(config)

    def forward(self, words: Tensor) -> Tensor:
        return self.model(input_ids=words, decoder_input_ids=words.flip(1)).logits


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTModel

    small = {name: value for name, value in SMALL.items() if name != "vocab_size"}
    config = ViTConfig(
        **small, image_size=24, patch_size=6, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **SURE
    )
    return Results(ViTModel(config), "last_hidden_state", "pooler_output")


HUB: dict[str, Model] = {
    "bert": Model(bert, lambda n: (tokens(2 + n % 5, n, 67),)),
    "gpt2": Model(gpt2, lambda n: (tokens(2 + n % 5, n, 67),)),
    "llama": Model(llama, lambda n: (tokens(2 + n % 5, n, 67),)),
    "t5": Model(Translator, lambda n: (tokens(2 + n % 5, n, 67),)),
    "vit": Model(vit, lambda n: (normal(n, 3, 24, 24),)),
}
