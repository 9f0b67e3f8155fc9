"""SGLang's storage interface. Its pages are Cairn's blocks, one cache for each pool of a rank.

Nothing is raised once the storage is attached: a page that did not come is a miss, one that was not stored is
computed again some day.
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
from cairn.engine.hints import NO_HINT, Hint, hint_of
from cairn.engine.options import Options, Unsupported, flat_shape
from cairn.engine.report import Report
from cairn.engine.shelf import Shelf
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
            raise Unsupported("CairnStorage does not do tp_lcm_size: ranks of other parallel sizes share nothing")
        self._config = storage_config
        # SGLang gives indices of its pools then, else tensors that it has copied a page to.
        self._in_place = bool(extra.get("interface_v1", 0))
        self._report = Report(logging.getLogger("sglang.cairn"))
        self._client = self._options.client(TIMEOUT_S)
        self._pools: dict[str, Any] = {}
        self._shelves: dict[str, Shelf] = {}
        if not self._in_place:
            self._report.warn('each page is copied once more: "interface_v1": 1 beside cairn.url saves that')

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._pools[KV] = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if str(host_pool_name) != KV:
            self._pools[str(host_pool_name)] = host_pool

    def on_host_pools_registered(self) -> None:
        """Makes the caches. Unsupported where the server has others of their names or refuses them."""
        for name in self._pools:
            self._shelf(name)

    # Pages by tensors.

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        return self._softly(0, lambda: self._shelf(KV).prefix([key_of(key) for key in keys]))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        def get() -> list[bool]:
            pages = [[tensor_piece(tensor)] for tensor in target_locations]
            return self._shelf(KV).get([key_of(key) for key in keys], pages)

        came = self._softly([False] * len(target_locations), get)
        return [tensor if here else None for tensor, here in zip(target_locations, came, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: Sequence[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        def put() -> bool:
            pages = [value.contiguous() for value in values]
            names = [key_of(key) for key in keys]
            return self._shelf(KV).put(names, [[tensor_piece(page)] for page in pages], parents_of(names, None))

        return self._softly(False, put)

    # Pages by their places in SGLang's pools.

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
        """The longest prefix of which every pool has what its policy asks for."""
        nothing = PoolTransferResult(0, {}, [])
        return self._softly(nothing, lambda: self._found_in_all(keys, pool_transfers or []))

    def _found_in_all(self, keys: Sequence[str], pool_transfers: Sequence[Any]) -> PoolTransferResult:
        names = [key_of(key) for key in keys]
        pages = self._shelf(KV).prefix(names)
        hits = {PoolName.KV: pages} if pages else {}
        usable = list(range(1, pages + 1))
        for transfer in pool_transfers:
            if not usable:
                break
            if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
                continue  # a second form of the same pages, which is not stored here
            # Of a state few pages are there, those where a prompt ended.
            there = self._shelf(str(transfer.name)).each(names[:pages], max_gaps=pages)
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
            self._report.warn(f"nothing was cleared: {error}")
            return False

    def close(self) -> None:
        for shelf in self._shelves.values():
            shelf.close()
        self._client.close()

    def _get(self, pool: str, keys: Sequence[str], host_indices: Any) -> list[bool]:
        def get() -> list[bool]:
            if not self._has_pages(pool, keys, host_indices):
                return [False] * len(keys)
            pieces = page_pieces(self._pools[pool], host_indices)
            return self._shelf(pool).get([key_of(key) for key in keys], pieces)

        return self._softly([False] * len(keys), get)

    def _set(self, pool: str, keys: Sequence[str], host_indices: Any, extra_info: Any) -> list[bool]:
        def put() -> bool:
            if not self._has_pages(pool, keys, host_indices):
                return False
            names = [key_of(key) for key in keys]
            parents = parents_of(names, getattr(extra_info, "prefix_keys", None))
            pieces = page_pieces(self._pools[pool], host_indices)
            return self._shelf(pool).put(names, pieces, parents, self._hint(extra_info))

        return [self._softly(False, put)] * len(keys)

    def _hint(self, extra_info: Any) -> Hint:
        try:
            return hint_of(getattr(extra_info, "extra_info", None))
        except ValueError as error:
            self._report.warn(f"extra_info is not passed on: {error}")
            return NO_HINT

    def _softly(self, otherwise: T, act: Callable[[], T]) -> T:
        """An exception would end SGLang's thread."""
        try:
            return act()
        except Exception:
            self._report.failed("pages could not be reached")
            return otherwise

    def _has_pages(self, pool: str, keys: Sequence[str], host_indices: Any) -> bool:
        pages = 0 if host_indices is None else len(host_indices) // page_tokens(self._pools[pool])
        if pages != len(keys):
            self._report.warn(f"{len(keys)} keys for {pages} pages of the pool {pool}")
        return pages == len(keys)

    def _shelf(self, pool: str) -> Shelf:
        shelf = self._shelves.get(pool)
        if shelf is None:
            size = self._page_bytes(pool)
            # Each pool has room for as many pages as the others.
            all_bytes = sum(self._page_bytes(name) for name in self._pools)
            options = dataclasses.replace(
                self._options,
                pinned_bytes=self._options.pinned_bytes * size // all_bytes,
                disk_bytes=self._options.disk_bytes * size // all_bytes,
            )
            rank = self._rank(pool)
            config = options.cache_config(flat_shape(size), rank.tensor_size * rank.pipeline_size)
            access = open_access(self._client, self._cache_name(pool), config, size, self._report)
            shelf = self._shelves[pool] = Shelf(access, size, self._report)
        return shelf

    def _cache_name(self, pool: str) -> str:
        if self._options.cache is not None:
            named = f"{self._options.cache}.{self._rank(pool).label}"
            return named if pool == KV else f"{named}.{pool}"
        identity = identity_of(
            *(self._config, self._pools[pool], pool),
            in_place=self._is_in_place(pool),
            pool_page_bytes=self._page_bytes(pool),
        )
        return identity.cache_name(self._rank(pool))

    def _page_bytes(self, pool: str) -> int:
        return page_bytes(self._pools[pool], in_place=self._is_in_place(pool))

    def _is_in_place(self, pool: str) -> bool:
        # Pools beside that of keys and values come by their indices always.
        return self._in_place or pool != KV

    def _rank(self, pool: str) -> Any:
        # A state beside a replicated latent is each rank's own.
        replicated = self._config.is_mla_model and pool != str(PoolName.MAMBA)
        return rank_of(self._config, replicated=replicated)
