"""SGLang's storage interface. A page of SGLang is a block of Cairn; each pool of a rank has its own cache.

After the start nothing raises: a page that did not arrive is a miss, and one that was not stored may be stored
later.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    PoolHitPolicy,
    PoolName,
    PoolTransferResult,
)

from cairn.engine.access import TIMEOUT_S, open_access
from cairn.engine.buffer_store import BufferStore
from cairn.engine.hints import hint_or_none
from cairn.engine.options import Options, Unsupported, flat_shape
from cairn.engine.report import Report
from cairn.engine.store import clear_caches
from cairn.errors import CairnError
from cairn.sglang.pages import (
    identity_of,
    key_of,
    page_bytes,
    page_pieces,
    page_tokens,
    parents_of,
    rank_of,
    tensor_piece,
)

KV = str(PoolName.KV)
T = TypeVar("T")


class CairnStorage(HiCacheStorage):  # type: ignore[misc]
    """Used by the threads of SGLang's cache controller."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = storage_config.extra_config or {}
        self._options = Options.of(extra, "hicache-storage-backend-extra-config")
        if storage_config.should_split_heads:
            raise Unsupported("CairnStorage does not support tp_lcm_size: other parallel sizes share no blocks")
        self._config = storage_config
        # With interface_v1, SGLang passes indices into its pools; otherwise it passes tensors that it copied a
        # page to.
        self._in_place = bool(extra.get("interface_v1", 0))
        self._report = Report(logging.getLogger("sglang.cairn"))
        self._client = self._options.client(TIMEOUT_S)
        self._pools: dict[str, Any] = {}
        self._blocks_of: dict[str, BufferStore] = {}
        if not self._in_place:
            self._report.warn('SGLang copies each page once more; "interface_v1": 1 beside cairn.url avoids that')

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._pools[KV] = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if str(host_pool_name) != KV:
            self._pools[str(host_pool_name)] = host_pool

    def on_host_pools_registered(self) -> None:
        """Makes the caches. Raises Unsupported if the server refuses them or has different ones of these names."""
        for name in self._pools:
            self._blocks(name)

    # Calls that pass pages as tensors.

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        return self._guard(0, lambda: self._blocks(KV).prefix([key_of(key) for key in keys]))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        def get() -> list[bool]:
            pages = [[tensor_piece(tensor)] for tensor in target_locations]
            return self._blocks(KV).get([key_of(key) for key in keys], pages)

        arrived = self._guard([False] * len(target_locations), get)
        return [tensor if here else None for tensor, here in zip(target_locations, arrived, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: Sequence[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        def put() -> bool:
            pages = [value.contiguous() for value in values]
            names = [key_of(key) for key in keys]
            return self._blocks(KV).put(names, [[tensor_piece(page)] for page in pages], parents_of(names, None))

        return self._guard(False, put)

    # Calls that pass pages as indices into SGLang's pools.

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._get(KV, keys, host_indices)

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._set(KV, keys, host_indices, extra_info)

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return {
            transfer.name: self._get(str(transfer.name), transfer.keys or [], transfer.host_indices)
            for transfer in transfers
        }

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return {
            transfer.name: self._set(str(transfer.name), transfer.keys or [], transfer.host_indices, extra_info)
            for transfer in transfers
        }

    def batch_exists_v2(
        self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> PoolTransferResult:
        """The longest prefix for which every pool has the pages that its policy requires."""
        nothing = PoolTransferResult(0, {}, [])
        return self._guard(nothing, lambda: self._found_in_all(keys, pool_transfers or []))

    def _found_in_all(self, keys: Sequence[str], pool_transfers: Sequence[Any]) -> PoolTransferResult:
        names = [key_of(key) for key in keys]
        pages = self._blocks(KV).prefix(names)
        hits = {PoolName.KV: pages} if pages else {}
        usable = list(range(1, pages + 1))
        for transfer in pool_transfers:
            if not usable:
                break
            if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
                continue  # another form of the same pages, which is not stored in Cairn
            # Few pages of a state exist: only those at the ends of prompts.
            there = self._blocks(str(transfer.name)).each(names[:pages], max_gaps=pages)
            needed = max(len(transfer.keys or []), 1)
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                needed = pages
            ends = {end for end in range(1, pages + 1) if all(there[max(end - needed, 0) : end])}
            if ends:
                hits[transfer.name] = max(ends)
            usable = [end for end in usable if end in ends]
        return PoolTransferResult(usable[-1] if usable else 0, hits, usable)

    def clear(self) -> bool:
        try:
            return clear_caches(self._client, [self._cache_name(pool) for pool in self._pools])
        except CairnError as error:
            self._report.warn(f"the caches could not be cleared: {error}")
            return False

    def close(self) -> None:
        for blocks in self._blocks_of.values():
            blocks.close()
        self._client.close()

    def _get(self, pool: str, keys: Sequence[str], host_indices: Any) -> list[bool]:
        def get() -> list[bool]:
            if not self._has_pages(pool, keys, host_indices):
                return [False] * len(keys)
            pieces = page_pieces(self._pools[pool], host_indices)
            return self._blocks(pool).get([key_of(key) for key in keys], pieces)

        return self._guard([False] * len(keys), get)

    def _set(self, pool: str, keys: Sequence[str], host_indices: Any, extra_info: Any) -> list[bool]:
        def put() -> bool:
            if not self._has_pages(pool, keys, host_indices):
                return False
            names = [key_of(key) for key in keys]
            parents = parents_of(names, getattr(extra_info, "prefix_keys", None))
            pieces = page_pieces(self._pools[pool], host_indices)
            hint = hint_or_none(getattr(extra_info, "extra_info", None), "extra_info", self._report)
            return self._blocks(pool).put(names, pieces, parents, hint)

        return [self._guard(False, put)] * len(keys)

    def _guard(self, fallback: T, act: Callable[[], T]) -> T:
        """An exception would end SGLang's thread."""
        return self._report.guard("an access to pages failed", fallback, act)

    def _has_pages(self, pool: str, keys: Sequence[str], host_indices: Any) -> bool:
        pages = 0 if host_indices is None else len(host_indices) // page_tokens(self._pools[pool])
        if pages != len(keys):
            self._report.warn(f"SGLang passed {len(keys)} keys for {pages} pages of the pool {pool}")
        return pages == len(keys)

    def _blocks(self, pool: str) -> BufferStore:
        blocks = self._blocks_of.get(pool)
        if blocks is None:
            size = self._page_bytes(pool)
            # Divides the sizes so that each pool has room for the same number of pages.
            all_bytes = sum(self._page_bytes(name) for name in self._pools)
            options = dataclasses.replace(
                self._options,
                pinned_bytes=self._options.pinned_bytes * size // all_bytes,
                disk_bytes=self._options.disk_bytes * size // all_bytes,
            )
            rank = self._rank(pool)
            config = options.cache_config(flat_shape(size), rank.tensor_size * rank.pipeline_size)
            access = open_access(self._client, self._cache_name(pool), config, size, self._report)
            blocks = self._blocks_of[pool] = BufferStore(access, size, self._report)
        return blocks

    def _cache_name(self, pool: str) -> str:
        if self._options.cache is not None:
            named = f"{self._options.cache}.{self._rank(pool).label}"
            return named if pool == KV else f"{named}.{pool}"
        identity = identity_of(
            self._config,
            self._pools[pool],
            pool,
            in_place=self._is_in_place(pool),
            pool_page_bytes=self._page_bytes(pool),
        )
        return identity.cache_name(self._rank(pool))

    def _page_bytes(self, pool: str) -> int:
        return page_bytes(self._pools[pool], in_place=self._is_in_place(pool))

    def _is_in_place(self, pool: str) -> bool:
        # SGLang always passes indices for the other pools.
        return self._in_place or pool != KV

    def _rank(self, pool: str) -> Any:
        # A state is not replicated, even if the latent is: each rank has its own.
        replicated = self._config.is_mla_model and pool != str(PoolName.MAMBA)
        return rank_of(self._config, replicated=replicated)
