#!/usr/bin/env python3
"""An SGLang engine on the CPU that takes commands on its standard input, like `vllm_engine.py`.

Run it with the environment's Python. First line: {"model": FOLDER, "connector": {...} or null, "options": {...}}.
The connector is the value of `hicache-storage-backend-extra-config`, or null for no hierarchical cache. The engine
answers {"ready": true}. It answers each line {"prompts": [...], "max_tokens": N} with {"tokens": [[...], ...],
"cached": [...], "storage": [...]}: how many tokens of each prompt came from any cache, and from the storage. With
"forget": true the engine first drops its own caches.

SGLang copies between an engine's memory and HiCache's only on GPUs, and pins the latter for them. This copies
arrays and pins nothing; everything else is SGLang's own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import sglang.srt.mem_cache.pool_host.common as common
import sglang.srt.mem_cache.pool_host.mha as pools

Tensors = Sequence[Any]


def save_pages(src_ptrs: Tensors, dst_ptrs: Tensors, src_indices: Any, dst_indices: Any, page_size: int) -> None:
    """Copies layers, first all keys and then all values, into pages `[page, layer, token, ...]` of each."""
    pages, layers = dst_indices[::page_size] // page_size, len(src_ptrs) // len(dst_ptrs)
    for number, source in enumerate(src_ptrs):
        rows = source[src_indices].view(len(pages), page_size, *source.shape[1:])
        dst_ptrs[number // layers][pages, number % layers] = rows


def load_pages(
    src_ptrs: Tensors, dst_ptrs: Tensors, src_indices: Any, dst_indices: Any, layer_id: int, page_size: int
) -> None:
    """Copies one layer from such pages."""
    pages = src_indices[::page_size] // page_size
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[pages, layer_id].reshape(-1, *target.shape[1:])


# Every process of SGLang imports this module at its start.
common._cuda_host_register = lambda *_: None
pools.transfer_kv_all_layer_direct_lf_pf = save_pages
pools.transfer_kv_per_layer_direct_pf_lf = load_pages

# An engine is still busy with its last batch for a moment after its answer.
FORGET_S = 60

# By default SGLang takes most of the machine's memory.
MAX_TOKENS = 4096


def main() -> None:
    # Send the output of SGLang and its processes to stderr.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.loads(sys.stdin.readline())
    engine = begin(asked["model"], asked["connector"], asked["options"])
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        if work.get("forget"):
            forget(engine)
        sampling = {"temperature": 0, "max_new_tokens": work["max_tokens"], "ignore_eos": True}
        done = [engine.generate(input_ids=[tokens], sampling_params=sampling)[0] for tokens in work["prompts"]]
        facts = [one["meta_info"] for one in done]
        answer = {
            "tokens": [one["output_ids"] for one in done],
            "cached": [one["cached_tokens"] for one in facts],
            "storage": [(one.get("cached_tokens_details") or {}).get("storage", 0) for one in facts],
        }
        print(json.dumps(answer), file=out, flush=True)
    engine.shutdown()


def forget(engine: Any) -> None:
    """Retries: SGLang refuses to clear its caches while it is busy."""
    deadline = time.monotonic() + FORGET_S
    while not engine.flush_cache().success:
        assert time.monotonic() < deadline, "the engine does not forget"
        time.sleep(0.05)


def begin(model: str, storage: dict[str, Any] | None, options: dict[str, Any]) -> Any:
    import sglang

    if storage is not None:
        options = {
            "enable_hierarchical_cache": True,
            "hicache_ratio": 2.0,
            "hicache_mem_layout": "page_first_direct",
            "hicache_io_backend": "direct",
            "hicache_write_policy": "write_through",
            # Otherwise an idle engine computes blocks that it has not loaded yet.
            "hicache_storage_prefetch_policy": "wait_complete",
            "hicache_storage_backend": "dynamic",
            "hicache_storage_backend_extra_config": json.dumps(storage),
            **options,
        }
    return sglang.Engine(
        model_path=model,
        device="cpu",
        skip_tokenizer_init=True,
        attention_backend="torch_native",
        sampling_backend="pytorch",
        disable_overlap_schedule=True,
        max_total_tokens=MAX_TOKENS,
        random_seed=0,
        **options,
    )


if __name__ == "__main__":
    main()
