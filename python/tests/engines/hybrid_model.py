#!/usr/bin/env python3
"""Makes a small model whose layers do not all remember the same, and whose answers depend on every block that a
prefix needs: a wrong block changes the tokens.

usage: hybrid_model.py FOLDER KIND   (with an environment's Python that has torch and transformers)

KIND: `gemma3` (five layers with a window of 512 tokens, one of full attention), `lfm2` (four short convolutions,
two of full attention), `olmo3` (three layers with a window of 96 tokens, one of full attention).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

SHARPNESS = 1.8  # of queries and of keys: a token attends to few other tokens
# Of the embeddings, compared with what a layer adds. `gemma3` and `lfm2` read the answer from the embeddings too:
# larger ones would make each token repeat itself.
EMBEDDING = 0.3
ATTENTION = 2.0  # of `lfm2`, compared with its convolutions, which see three tokens
COMMON: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 2000,
    "max_position_embeddings": 8192,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KINDS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "sliding_window": 512,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "query_pre_attn_scalar": 64,
        "tie_word_embeddings": True,
    },
    "lfm2": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "num_hidden_layers": 6,
        "layer_types": ["conv", "conv", "full_attention"] * 2,
        "conv_dim": 256,
        "conv_dim_out": 256,
        "block_dim": 256,
        "conv_L_cache": 3,
        "block_ff_dim": 512,
        "block_auto_adjust_ff_dim": False,
        "tie_word_embeddings": True,
    },
    "olmo3": {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "num_hidden_layers": 4,
        "sliding_window": 96,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
}


def main() -> None:
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(COMMON | KINDS[kind]))
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        shapes = {
            name: value.shape for name, value in AutoModelForCausalLM.from_config(config).state_dict().items()
        }
    random = torch.Generator().manual_seed(0)
    is_gemma, is_tied = kind == "gemma3", KINDS[kind].get("tie_word_embeddings", False)
    weights = {}
    for name, shape in sorted(shapes.items()):
        if name == "lm_head.weight" and is_tied:
            continue
        if len(shape) == 1:
            sharp = any(part in name for part in ("q_norm", "k_norm", "q_layernorm", "k_layernorm"))
            # Gemma adds 1.
            weights[name] = torch.full(shape, (SHARPNESS if sharp else 1.0) - is_gemma)
            continue
        scale = shape[1:].numel() ** -0.5
        if "embed_tokens" in name:
            # Gemma multiplies them by the root of their size.
            scale = EMBEDDING * (scale if is_gemma else 1)
        if name.endswith("self_attn.out_proj.weight"):
            scale *= ATTENTION
        weights[name] = torch.randn(shape, generator=random) * scale
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main()
