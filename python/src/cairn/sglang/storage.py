"""SGLang's storage interface. A page of SGLang is a block of Cairn. Windows and states that belong to keys and
values are KV groups of their cache.

After the start nothing raises: a page that did not arrive is a miss, and one that was not stored may be stored
later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    PoolHitPolicy,
    PoolName,
    PoolTransferResult,
)

from cairn.engine.access import TIMEOUT_S
from cairn.engine.buffer_store import CopiedBlocks
from cairn.engine.hints import hint_or_none
from cairn.engine.options import Options, Unsupported
from cairn.engine.report import Report
from cairn.engine.store import clear_caches
from cairn.errors import CairnError
from cairn.sglang.caches import KV, PoolCaches
from cairn.sglang.pages import key_of, page_pieces, page_tokens, parents_of, tensor_piece

# The most windows and states that wait for their pages of keys and values. SGLang stores one prompt's after the
# other, and a prompt has one of each pool.
MAX_WAITING = 8

T = TypeVar("T")


class CairnStorage(HiCacheStorage):  # type: ignore[misc]
    """Used by the threads of SGLang's cache controller."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = storage_config.extra_config or {}
        options = Options.of(extra, "hicache-storage-backend-extra-config")
        if storage_config.should_split_heads:
            raise Unsupported("CairnStorage does not support tp_lcm_size: other parallel sizes share no blocks")
        # With interface_v1, SGLang passes indices into its pools; otherwise it passes tensors that it copied a
        # page to.
        in_place = bool(extra.get("interface_v1", 0))
        self._report = Report(logging.getLogger("sglang.cairn"))
        self._client = options.client(TIMEOUT_S)
        self._waiting: list[CopiedBlocks] = []  # only SGLang's thread that stores pages uses it
        self._caches = PoolCaches(self._client, options, storage_config, self._report, in_place=in_place)
        if not in_place:
            self._report.warn('SGLang copies each page once more; "interface_v1": 1 beside cairn.url avoids that')

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._caches.add(KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if str(host_pool_name) != KV:
            self._caches.add(str(host_pool_name), host_pool)

    def on_host_pools_registered(self) -> None:
        """Makes the caches. Raises Unsupported if a pool's pages cannot be stored, or if the server refuses the
        caches or has different ones of these names."""
        self._caches.open()

    # Calls that pass pages as tensors.

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        return self._guard(0, lambda: self._caches.blocks(KV).prefix([key_of(key) for key in keys]))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        def get() -> list[bool]:
            pages = [[tensor_piece(tensor)] for tensor in target_locations]
            return self._caches.blocks(KV).get([key_of(key) for key in keys], pages)

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
            pieces = [[tensor_piece(page)] for page in pages]
            return self._caches.blocks(KV).put(names, pieces, parents_of(names, None))

        stored = self._guard(False, put)
        self._commit_waiting(keys, stored=stored)
        return stored

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
        pages = self._caches.blocks(KV).prefix(names)
        hits: dict[Any, int] = {PoolName.KV: pages} if pages else {}
        trailing = {}
        for transfer in pool_transfers:
            if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                trailing[transfer.name] = max(len(transfer.keys or []), 1)
            elif transfer.hit_policy == PoolHitPolicy.ALL_PAGES and pages:
                own = self._caches.blocks(str(transfer.name)).prefix(names[:pages])
                if own:
                    hits[transfer.name] = own
                pages = own
            # Other policies are for another form of the same pages, which is not stored in Cairn.
        needed = {str(name): count for name, count in trailing.items()}
        usable = self._caches.ends(names[:pages], needed) if needed and pages else list(range(1, pages + 1))
        longest = usable[-1] if usable else 0
        if longest:
            hits |= dict.fromkeys(trailing, longest)
        return PoolTransferResult(longest, hits, usable)

    def clear(self) -> bool:
        try:
            return clear_caches(self._client, self._caches.names())
        except CairnError as error:
            self._report.warn(f"the caches could not be cleared: {error}")
            return False

    def close(self) -> None:
        for copied in self._waiting:
            copied.release()
        self._caches.close()
        self._client.close()

    def _get(self, pool: str, keys: Sequence[str], host_indices: Any) -> list[bool]:
        def get() -> list[bool]:
            if not self._has_pages(pool, keys, host_indices):
                return [False] * len(keys)
            pieces = page_pieces(self._caches.pool(pool), host_indices)
            return self._caches.blocks(pool).get([key_of(key) for key in keys], pieces)

        return self._guard([False] * len(keys), get)

    def _set(self, pool: str, keys: Sequence[str], host_indices: Any, extra_info: Any) -> list[bool]:
        def put() -> bool:
            if not self._has_pages(pool, keys, host_indices):
                return False
            names = [key_of(key) for key in keys]
            parents = parents_of(names, getattr(extra_info, "prefix_keys", None))
            pieces = page_pieces(self._caches.pool(pool), host_indices)
            hint = hint_or_none(getattr(extra_info, "extra_info", None), "extra_info", self._report)
            if names and self._caches.follows(pool):
                return self._wait(self._caches.blocks(pool).copy(names, pieces, parents, hint))
            return self._caches.blocks(pool).put(names, pieces, parents, hint)

        stored = self._guard(False, put)
        if pool == KV:
            self._commit_waiting(keys, stored=stored)
        return [stored] * len(keys)

    def _wait(self, copied: CopiedBlocks | None) -> bool:
        """SGLang stores windows and states before the pages of keys and values that they belong to."""
        if copied is None:
            return False
        self._waiting.append(copied)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.pop(0).release()
            self._report.warn("SGLang stores a window or a state without its keys and values; it is not saved")
        return True

    def _commit_waiting(self, pages: Sequence[str], *, stored: bool) -> None:
        """Of keys and values, `pages` are stored, or could not be."""
        there = {key_of(page) for page in pages}
        waiting, self._waiting = self._waiting, []
        for copied in waiting:
            if not stored:
                copied.release()  # SGLang stores no more pages of this prompt
            elif copied.keys[-1] in there:
                copied.commit()
            else:
                self._waiting.append(copied)

    def _guard(self, fallback: T, act: Callable[[], T]) -> T:
        """An exception would end SGLang's thread."""
        return self._report.guard("an access to pages failed", fallback, act)

    def _has_pages(self, pool: str, keys: Sequence[str], host_indices: Any) -> bool:
        pages = 0 if host_indices is None else len(host_indices) // page_tokens(self._caches.pool(pool))
        if pages != len(keys):
            self._report.warn(f"SGLang passed {len(keys)} keys for {pages} pages of the pool {pool}")
        return pages == len(keys)
