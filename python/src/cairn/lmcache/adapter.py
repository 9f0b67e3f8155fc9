"""LMCache's L2 adapter. An object of LMCache is a block of Cairn; each model and object size has its own cache.

After the start nothing raises, and every task ends: an object that did not arrive is a miss, and one that was not
stored may be stored later. A lease pins objects that were looked up until LMCache unlocks them.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform.event_notifier import create_event_notifier

from cairn.engine.buffer_store import over_gaps
from cairn.engine.holds import Holds
from cairn.engine.jobs import Jobs
from cairn.engine.options import Options
from cairn.engine.report import Report
from cairn.errors import CairnError
from cairn.lmcache.caches import ObjectCache, ObjectCaches, chain_of, key_of, layout_bytes

# For each kind of task, so that look-ups and loads never wait behind stores.
THREADS = 2

# Indices into a task's list of keys.
Places = list[int]


class CairnAdapter(L2AdapterInterface):  # type: ignore[misc]
    """Used by the threads of LMCache's controllers."""

    def __init__(self, params: Mapping[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__()  # no capacity limit here: the server has its own and evicts by itself
        self._report = report = Report(logging.getLogger("lmcache.cairn"))
        self._options = Options.of(params, "adapter_params")
        self._caches = ObjectCaches(self._options, self._report)
        self._holds = Holds()
        self._numbers = itertools.count()
        self._store_done, self._lookup_done, self._load_done = (create_event_notifier() for _ in range(3))
        self._stores: Jobs[L2StoreResult] = Jobs("cairn-save", THREADS, report, self._store_done.notify)
        self._lookups: Jobs[Bitmap] = Jobs("cairn-lookup", THREADS, report, self._lookup_done.notify)
        self._loads: Jobs[Bitmap] = Jobs("cairn-load", THREADS, report, self._load_done.notify)

    def get_store_event_fd(self) -> int:
        return int(self._store_done.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._lookup_done.fileno())

    def get_load_event_fd(self) -> int:
        return int(self._load_done.fileno())

    def submit_store_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        number = next(self._numbers)
        self._stores.submit(number, functools.partial(self._store, keys, objects), L2StoreResult(False, 0))
        return number

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        return {done.number: done.result for done in self._stores.take_done()}

    def submit_lookup_and_lock_task(self, keys: Sequence[Any], group_layout_descs: Mapping[int, Any]) -> int:
        number = next(self._numbers)
        sizes = {group: layout_bytes(layout) for group, layout in group_layout_descs.items()}
        look_up = functools.partial(self._look_up, keys, [sizes.get(key.object_group_id, 0) for key in keys])
        self._lookups.submit(number, look_up, Bitmap(len(keys)))
        return number

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        return self._lookups.take(task_id)

    def submit_unlock(self, keys: Sequence[Any]) -> None:
        ended = self._holds.drop([key_of(key) for key in keys])
        for release in ended:
            self._lookups.do(release)

    def submit_load_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        number = next(self._numbers)
        self._loads.submit(number, functools.partial(self._load, keys, objects), Bitmap(len(keys)))
        return number

    def query_load_result(self, task_id: int) -> Bitmap | None:
        return self._loads.take(task_id)

    def delete(self, keys: Sequence[Any]) -> None:
        by_model = defaultdict(list)
        for key in keys:
            by_model[key.model_name].append(key)
        try:
            for model, gone in by_model.items():
                for cache in self._caches.all(model):
                    self._caches.client.evict(cache.name, [key_of(key) for key in gone])
        except CairnError as error:
            self._report.warn(f"objects were not deleted: {error}")

    def report_status(self) -> dict[str, Any]:
        caches = self._caches.all()
        return {
            "is_healthy": not any(cache.is_silent for cache in caches),
            "type": type(self).__name__,
            "url": self._options.url,
            "caches": [cache.name for cache in caches],
            "held_objects": len(self._holds),
        }

    def close(self) -> None:
        for jobs in (self._stores, self._lookups, self._loads):
            jobs.close()
        for release in self._holds.drop_all():
            release()
        self._caches.close()
        for done in (self._store_done, self._lookup_done, self._load_done):
            done.close()

    def _store(self, keys: Sequence[Any], objects: Sequence[Any]) -> L2StoreResult:
        stored, total_bytes = True, 0
        for cache, places in self._by_cache(keys, [one.get_size() for one in objects]):
            own = [keys[at] for at in places]
            names = [key_of(key) for key in own]
            pieces = [[objects[at].byte_array] for at in places]
            if cache is not None and cache.blocks.put(names, pieces, _parents(own, names)):
                total_bytes += len(places) * cache.object_bytes
                self._notify_keys_stored(own, [cache.object_bytes] * len(places))
            else:
                stored = False
        return L2StoreResult(stored, total_bytes)

    def _look_up(self, keys: Sequence[Any], sizes: Sequence[int]) -> Bitmap:
        there = Bitmap(len(keys))
        for cache, places in self._by_cache(keys, sizes):
            # Without a size, look in every cache of the model that this process knows.
            for one in self._caches.all(keys[places[0]].model_name) if cache is None else [cache]:
                places = [at for at in places if not there.test(at)]
                there.batched_set(self._hold(one, [key_of(keys[at]) for at in places], places))
        return there

    def _hold(self, cache: ObjectCache, names: Sequence[bytes], places: Places) -> Places:
        """Pins the objects that exist and returns their indices."""

        def hold_prefix(begin: int) -> int:
            found = cache.finder.find(names[begin:], 0)
            if found.blocks:
                release = functools.partial(cache.finder.release, found)
                self._holds.add(names[begin : begin + found.blocks], release)
            return found.blocks

        return list(itertools.compress(places, over_gaps(len(names), hold_prefix)))

    def _load(self, keys: Sequence[Any], objects: Sequence[Any]) -> Bitmap:
        arrived = Bitmap(len(keys))
        for cache, places in self._by_cache(keys, [one.get_size() for one in objects]):
            if cache is None:
                continue
            names = [key_of(keys[at]) for at in places]
            here = cache.blocks.get(names, [[objects[at].byte_array] for at in places])
            loaded = list(itertools.compress(places, here))
            arrived.batched_set(loaded)
            self._notify_keys_accessed([keys[at] for at in loaded])
        return arrived

    def _by_cache(self, keys: Sequence[Any], sizes: Sequence[int]) -> list[tuple[ObjectCache | None, Places]]:
        """Groups the keys by cache, chain by chain. Each cache comes with the indices of its keys."""
        places: dict[tuple[str, int], Places] = defaultdict(list)
        # The sort is stable: it keeps the order within a chain.
        order = sorted(range(len(keys)), key=lambda at: chain_of(keys[at]))
        for at in order:
            places[keys[at].model_name, sizes[at]].append(at)
        return [
            (self._caches.of(model, size) if size else None, of_cache)
            for (model, size), of_cache in places.items()
        ]


def _parents(keys: Sequence[Any], names: Sequence[bytes]) -> list[bytes | None]:
    """Each object's predecessor in its chain, if it is in the same task. It only affects the order of eviction."""
    chains = [chain_of(key) for key in keys]
    return [names[at - 1] if at and chains[at - 1] == chains[at] else None for at in range(len(keys))]
