"""Tokenizer and Gemma-4-shaped encoder of the pocket model, and the files of both network halves that read them.

The tokenizer knows the words of the caption grammar; every other word is <unk>. Must not know clips or training.
"""

import json
from typing import Any

import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn
from transformers import Gemma4UnifiedTextConfig, Gemma4UnifiedTextModel

from pocket.captions import WORD, words
from pocket.export import GEMMA_VERSION

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")
PAD, EOS, BOS, UNK = range(len(SPECIAL))
VOCABULARY = 128
HIDDEN, LAYERS = 64, 6
PROJECTION = "text_embedding_projection."
ASSETS = {
    "hf_asset__tokenizer_config.json": {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "padding_side": "left",
        "model_max_length": 4096,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    },
    "hf_asset__processor_config.json": {"processor_class": "Gemma4UnifiedProcessor"},
}


def build_tokenizer() -> Tokenizer:
    """Lower-case words and commas to ids; the same text gives the same ids as `Ids`."""
    table = {token: i for i, token in enumerate([*SPECIAL, *words()])}
    tokenizer = Tokenizer(WordLevel(table, unk_token="<unk>"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


class Ids:
    """Fast path of the tokenizer for captions of the grammar, used while training."""

    def __init__(self) -> None:
        self._table = {token: i for i, token in enumerate([*SPECIAL, *words()])}

    def of(self, text: str) -> list[int]:
        """BOS and the words."""
        return [BOS, *(self._table.get(w, UNK) for w in WORD.findall(text))]

    def batch(self, texts: list[str], length: int) -> tuple[Int[Tensor, "b s"], Int[Tensor, " b"]]:
        """Ids padded on the right to `length`, and how many are real."""
        rows = [self.of(t)[:length] for t in texts]
        ids = torch.full((len(rows), length), PAD)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        return ids, torch.tensor([len(r) for r in rows])


def gemma_config() -> dict[str, Any]:
    """`gemma_config` metadata: the released shape with few channels, five sliding layers and a global one."""
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-6,
        "use_cache": True,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        },
        "attention_bias": False,
        "attention_dropout": 0.0,
        "sliding_window": 1024,
        "layer_types": ["sliding_attention"] * (LAYERS - 1) + ["full_attention"],
        "final_logit_softcapping": None,
        "use_bidirectional_attention": "vision",
        "num_global_key_value_heads": 1,
        "global_head_dim": 32,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "model_type": "gemma4_unified_text",
    }
    return {
        "model_type": "gemma4_unified",
        "text_config": text,
        "tie_word_embeddings": True,
        "gemma_version": GEMMA_VERSION,
    }


def build_gemma() -> Gemma4UnifiedTextModel:
    """The library class for `gemma_config`, randomly initialised."""
    config = Gemma4UnifiedTextConfig(**gemma_config()["text_config"])
    config._attn_implementation = "sdpa"
    return Gemma4UnifiedTextModel(config)


def hidden_states(gemma: nn.Module, ids: Int[Tensor, "b s"]) -> Float[Tensor, "b s c l"]:
    """Scaled embedding, layers and, last, the final norm's output; causal, so padding on the right is harmless.

    Masks are given as None, which means causal: the library's own making of them reads the device, and no caption is
    as long as the sliding window.
    """
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    masks = {"full_attention": None, "sliding_attention": None}
    states = gemma(
        input_ids=ids, position_ids=positions, attention_mask=masks, use_cache=False, output_hidden_states=True
    ).hidden_states
    return torch.stack(states, dim=-1)


def _bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def text_tensors(gemma: nn.Module, projection: nn.Module) -> dict[str, Tensor]:
    """Official names: Gemma under `model.`, the projection, the tokenizer and its companions as bytes."""
    tensors = {f"model.{k}": v for k, v in gemma.state_dict().items() if "rotary" not in k and "embed_scale" not in k}
    tensors |= {PROJECTION + k: v for k, v in projection.state_dict().items()}
    return (
        tensors
        | {"tokenizer_json": _bytes(build_tokenizer().to_str())}
        | {k: _bytes(json.dumps(v)) for k, v in ASSETS.items()}
    )
