"""The memory of a page in SGLang's host pools, and the identity of a pool's pages."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from cairn.engine.buffer_store import Pieces
from cairn.engine.keys import Identity, Rank
from cairn.engine.options import Unsupported

KEY_HEX_CHARACTERS = 64


def key_of(key: str) -> bytes:
    """SGLang's keys are SHA-256 in hex, over all tokens from the first on and the request's namespace. Any other
    key is hashed."""
    if len(key) == KEY_HEX_CHARACTERS:
        try:
            return bytes.fromhex(key)
        except ValueError:
            pass
    return hashlib.sha256(key.encode()).digest()


def page_tokens(pool: Any) -> int:
    """How many indices of the pool make one page."""
    return int(getattr(pool, "logical_page_size", 0) or getattr(pool, "page_size", 0) or 1)


def page_pieces(pool: Any, host_indices: Any) -> list[Pieces]:
    """The memory of each page that the indices name, in the pieces of the pool's layout."""
    pointers, sizes = pool.get_page_buffer_meta(host_indices)
    pages = len(host_indices) // page_tokens(pool)
    each = len(pointers) // pages if pages else 0
    memory = [_memory(pointer, size) for pointer, size in zip(pointers, sizes, strict=True)]
    return [memory[at * each : (at + 1) * each] for at in range(pages)]


def tensor_piece(tensor: Any) -> memoryview:
    """The memory of a contiguous tensor on the CPU. Raises Unsupported for any other tensor."""
    if not tensor.is_contiguous():
        raise Unsupported("SGLang passed a page whose tensor is not contiguous")
    return _memory(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def page_bytes(pool: Any, *, in_place: bool) -> int:
    if not in_place:
        page = pool.get_dummy_flat_data_page()
        return int(page.numel() * page.element_size())
    import torch

    (pieces,) = page_pieces(pool, torch.arange(page_tokens(pool)))
    return sum(piece.nbytes for piece in pieces)


def rank_of(config: Any, *, replicated: bool) -> Rank:
    """config: SGLang's `HiCacheStorageConfig`. Ranks that hold the same bytes (`replicated`) share a cache."""
    if replicated:
        return Rank(0, 1, config.pp_rank, config.pp_size)
    return Rank(config.tp_rank, config.tp_size, config.pp_rank, config.pp_size)


def identity_of(config: Any, pool: Any, name: str, *, in_place: bool, pool_page_bytes: int) -> Identity:
    """What two engines must agree on to share a pool's pages."""
    # `in_place` decides the order of a page's pieces.
    facts = _pool_facts(pool, name, pool_page_bytes) | {"in_place": in_place}
    return Identity(config.model_name or "model", facts | _parallel_facts(config))


def shared_identity_of(
    config: Any, pools: Mapping[str, Any], *, in_place: bool, bytes_of: Mapping[str, int]
) -> Identity:
    """The same for pools that share a cache. bytes_of: the size of a page of each."""
    described = [_pool_facts(pool, name, bytes_of[name]) for name, pool in pools.items()]
    facts = {"pools": described, "in_place": in_place}
    return Identity(config.model_name or "model", facts | _parallel_facts(config))


def _pool_facts(pool: Any, name: str, pool_page_bytes: int) -> dict[str, object]:
    return {
        "pool": name,
        "kind": type(pool).__name__,
        "layout": str(getattr(pool, "layout", "")),
        "dtype": str(getattr(pool, "dtype", "")),
        "page_tokens": page_tokens(pool),
        "page_bytes": pool_page_bytes,
    }


def _parallel_facts(config: Any) -> dict[str, object]:
    return {
        "tensor_parallel_size": config.tp_size,
        "pipeline_parallel_size": config.pp_size,
        "context_parallel": [config.attn_cp_rank, config.attn_cp_size],
        "decode_context_parallel": [config.dcp_rank, config.dcp_size],
        "mla": config.is_mla_model,
    }


def parents_of(keys: Sequence[bytes], prefix: Sequence[str] | None) -> list[bytes | None]:
    """The key of each page's predecessor in its prompt."""
    first = key_of(prefix[-1]) if prefix else None
    return [first, *keys[:-1]]


def _memory(pointer: int, size: int) -> memoryview:
    return memoryview(_array_of(size).from_address(pointer)).cast("B")


@functools.cache  # a pool has few sizes, and making such a type takes longer than a copy
def _array_of(size: int) -> Any:
    return ctypes.c_char * size
