#!/usr/bin/env python3
"""Makes a small model whose answers depend on every block of the prompt: a wrong block changes the tokens.

usage: tiny_model.py FOLDER LAYERS HIDDEN [latent]   (with an environment's Python that has torch)

vLLM's own dummy weights are so small that attention changes almost nothing. Here the matrices preserve the size of
the values, except those of attention: a token attends to few other tokens, and they weigh more than the token
itself. `latent`: a model that keeps keys and values as one latent vector for each token (MLA).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCABULARY = 2000
HEAD_DIM = 64
SHARPNESS = 1.5  # of queries and of keys
ATTENTION = 4.0
# The only sizes that vLLM's CPU kernel for latents supports.
LATENT, LATENT_ROPE = 512, 64
LATENT_HEAD = 128


def main() -> None:
    folder, layers, hidden = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    latent = sys.argv[4:] == ["latent"]
    heads = hidden // HEAD_DIM
    values, inner = heads // 2 * HEAD_DIM, 2 * hidden
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if latent:
        config |= {
            "architectures": ["DeepseekV2ForCausalLM"],
            "model_type": "deepseek_v2",
            "num_key_value_heads": heads,
            "q_lora_rank": None,
            "kv_lora_rank": LATENT,
            "qk_rope_head_dim": LATENT_ROPE,
            "qk_nope_head_dim": LATENT_HEAD,
            "v_head_dim": LATENT_HEAD,
            "first_k_dense_replace": layers,  # no experts
        }
        del config["head_dim"]
    random = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * (scale / columns**0.5)

    weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, hidden, hidden**0.5),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": matrix(VOCABULARY, hidden),
    }
    for number in range(layers):
        name = f"model.layers.{number}"
        weights |= {
            f"{name}.input_layernorm.weight": torch.ones(hidden),
            f"{name}.post_attention_layernorm.weight": torch.ones(hidden),
        }
        attention = f"{name}.self_attn"
        if latent:
            weights |= {
                f"{attention}.q_proj.weight": matrix(heads * (LATENT_HEAD + LATENT_ROPE), hidden, SHARPNESS),
                f"{attention}.kv_a_proj_with_mqa.weight": matrix(LATENT + LATENT_ROPE, hidden, SHARPNESS),
                f"{attention}.kv_a_layernorm.weight": torch.ones(LATENT),
                f"{attention}.kv_b_proj.weight": matrix(heads * 2 * LATENT_HEAD, LATENT, SHARPNESS),
                f"{attention}.o_proj.weight": matrix(hidden, heads * LATENT_HEAD, ATTENTION),
            }
        else:
            weights |= {
                f"{attention}.q_proj.weight": matrix(hidden, hidden, SHARPNESS),
                f"{attention}.k_proj.weight": matrix(values, hidden, SHARPNESS),
                f"{attention}.v_proj.weight": matrix(values, hidden),
                f"{attention}.o_proj.weight": matrix(hidden, hidden, ATTENTION),
            }
        weights |= {
            f"{name}.mlp.gate_proj.weight": matrix(inner, hidden),
            f"{name}.mlp.up_proj.weight": matrix(inner, hidden),
            f"{name}.mlp.down_proj.weight": matrix(hidden, inner),
        }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
