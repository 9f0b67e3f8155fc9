#!/usr/bin/env python3
"""Makes a small Mamba with random weights and SmolLM2's tokenizer, as a GGUF file.

usage: tiny_gguf.py FILE
"""

from __future__ import annotations

import sys

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from smollm2 import gguf

WIDTH, LAYERS, INNER, STATE, KERNEL, RANK = 64, 2, 128, 16, 4, 4


def main() -> None:
    made = GGUFWriter(sys.argv[1], "mamba")
    words = 0
    for name, field in GGUFReader(str(gguf())).fields.items():
        if name.startswith("tokenizer."):
            if name == "tokenizer.ggml.tokens":
                words = len(field.contents())
            if field.types[0] == GGUFValueType.ARRAY:
                made.add_array(name, field.contents())
            else:
                made.add_key_value(name, field.contents(), field.types[0])
    values = np.random.default_rng(1)

    def spread(name: str, *shape: int) -> None:
        made.add_tensor(name, (0.3 * values.standard_normal(shape)).astype(np.float32))

    def near_one(name: str, *shape: int) -> None:
        made.add_tensor(name, (1 + 0.1 * values.standard_normal(shape)).astype(np.float32))

    made.add_context_length(4096)
    made.add_embedding_length(WIDTH)
    made.add_block_count(LAYERS)
    made.add_layer_norm_rms_eps(1e-5)
    made.add_feed_forward_length(0)
    made.add_head_count(0)
    made.add_ssm_conv_kernel(KERNEL)
    made.add_ssm_inner_size(INNER)
    made.add_ssm_state_size(STATE)
    made.add_ssm_time_step_rank(RANK)
    spread("token_embd.weight", words, WIDTH)
    near_one("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        of = f"blk.{layer}."
        near_one(of + "attn_norm.weight", WIDTH)
        spread(of + "ssm_in.weight", 2 * INNER, WIDTH)
        spread(of + "ssm_conv1d.weight", INNER, KERNEL)
        spread(of + "ssm_conv1d.bias", INNER)
        spread(of + "ssm_x.weight", RANK + 2 * STATE, INNER)
        spread(of + "ssm_dt.weight", INNER, RANK)
        spread(of + "ssm_dt.bias", INNER)
        made.add_tensor(of + "ssm_a", -np.tile(np.arange(1, STATE + 1, dtype=np.float32), (INNER, 1)))
        near_one(of + "ssm_d", INNER)
        spread(of + "ssm_out.weight", WIDTH, INNER)
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()


if __name__ == "__main__":
    main()
