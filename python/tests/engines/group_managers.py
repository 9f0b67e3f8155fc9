"""The blocks that vLLM's own managers keep for a loaded prefix are those that the connector loads. Run it with the
environment's Python."""

from __future__ import annotations

import unittest
from typing import Any

import torch
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.single_type_kv_cache_manager import (
    ChunkedLocalAttentionManager,
    FullAttentionManager,
    MambaManager,
    SlidingWindowManager,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)

from cairn.vllm.setup import _group

BLOCK_TOKENS = 32
ATTENTION: dict[str, Any] = {
    "block_size": BLOCK_TOKENS,
    "num_kv_heads": 1,
    "head_size": 64,
    "dtype": torch.float32,
}


class Managers(unittest.TestCase):
    def check(self, kind: Any, spec: Any) -> None:
        group = _group(None, 0, spec)
        for tokens in range(BLOCK_TOKENS, 40 * BLOCK_TOKENS, BLOCK_TOKENS):
            pool = BlockPool(64, True, BLOCK_TOKENS)
            manager = kind(
                spec,
                block_pool=pool,
                enable_caching=True,
                kv_cache_group_id=0,
                scheduler_block_size=BLOCK_TOKENS,
            )
            manager.add_local_computed_blocks("a", [], 0, tokens)
            manager.allocate_external_computed_blocks("a", 0, tokens)
            table = manager.req_to_blocks["a"]
            kept = [at for at, block in enumerate(table) if not block.is_null]
            self.assertEqual(kept, list(group.needed(tokens)), (spec, tokens))

    def test_full_attention(self) -> None:
        self.check(FullAttentionManager, FullAttentionSpec(**ATTENTION))

    def test_windows(self) -> None:
        for window in (2, BLOCK_TOKENS, BLOCK_TOKENS + 1, BLOCK_TOKENS + 2, 100, 512, 2000):
            self.check(SlidingWindowManager, SlidingWindowSpec(**ATTENTION, sliding_window=window))

    def test_chunks(self) -> None:
        for chunk in (BLOCK_TOKENS, 256, 2048):
            self.check(
                ChunkedLocalAttentionManager, ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=chunk)
            )

    def test_states(self) -> None:
        spec = MambaSpec(
            block_size=BLOCK_TOKENS, shapes=((2, 64),), dtypes=(torch.float32,), mamba_cache_mode="align"
        )
        self.check(MambaManager, spec)


if __name__ == "__main__":
    unittest.main()
