"""LMCache's L2 adapter. Its objects are Cairn's blocks, one cache for each model and size of object.

Nothing is raised once it is made, and every task ends: what did not come is a miss, what was not stored is stored
another day. Objects that were looked up are held under a lease until LMCache gives them up.
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

from cairn.engine.holds import Holds
from cairn.engine.jobs import Jobs
from cairn.engine.options import Options
from cairn.engine.report import Report
from cairn.engine.shelf import MAX_GAPS
from cairn.errors import CairnError
from cairn.lmcache.homes import Home, Homes, chain_of, key_of, layout_bytes

# Of each kind: look-ups and loads never wait behind stores.
THREADS = 2

# Places in a task's list of keys.
Places = list[int]


class CairnAdapter(L2AdapterInterface):  # type: ignore[misc]
    """Used by LMCache's controllers' threads."""

    def __init__(self, params: Mapping[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__()  # the server has its own limits, and evicts by itself
        self._report = report = Report(logging.getLogger("lmcache.cairn"))
        self._options = Options.of(params, "adapter_params")
        self._homes = Homes(self._options, self._report)
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
                for home in self._homes.all(model):
                    self._homes.client.evict(home.cache, [key_of(key) for key in gone])
        except CairnError as error:
            self._report.warn(f"objects were not deleted: {error}")

    def report_status(self) -> dict[str, Any]:
        homes = self._homes.all()
        return {
            "is_healthy": not any(home.is_silent for home in homes),
            "type": type(self).__name__,
            "url": self._options.url,
            "caches": [home.cache for home in homes],
            "held_objects": len(self._holds),
        }

    def close(self) -> None:
        for jobs in (self._stores, self._lookups, self._loads):
            jobs.close()
        for release in self._holds.drop_all():
            release()
        self._homes.close()
        for done in (self._store_done, self._lookup_done, self._load_done):
            done.close()

    def _store(self, keys: Sequence[Any], objects: Sequence[Any]) -> L2StoreResult:
        stored, total_bytes = True, 0
        for home, places in self._by_home(keys, [one.get_size() for one in objects]):
            own = [keys[at] for at in places]
            names = [key_of(key) for key in own]
            pieces = [[objects[at].byte_array] for at in places]
            if home is not None and home.shelf.put(names, pieces, _parents(own, names)):
                total_bytes += len(places) * home.object_bytes
                self._notify_keys_stored(own, [home.object_bytes] * len(places))
            else:
                stored = False
        return L2StoreResult(stored, total_bytes)

    def _look_up(self, keys: Sequence[Any], sizes: Sequence[int]) -> Bitmap:
        there = Bitmap(len(keys))
        for home, places in self._by_home(keys, sizes):
            # Of objects whose size is not told, those that this process knows are asked for.
            for one in self._homes.all(keys[places[0]].model_name) if home is None else [home]:
                places = [at for at in places if not there.test(at)]
                there.batched_set(self._hold(one, [key_of(keys[at]) for at in places], places))
        return there

    def _hold(self, home: Home, names: Sequence[bytes], places: Places) -> Places:
        """The places of those that are there, which are held from here on."""
        held: Places = []
        begin = gaps = 0
        while begin < len(names) and gaps < MAX_GAPS:
            found = home.finder.find(names[begin:], 0)
            end = begin + found.blocks
            if found.blocks:
                self._holds.add(names[begin:end], functools.partial(home.finder.release, found))
                held += places[begin:end]
            begin, gaps = end + 1, gaps + 1
        return held

    def _load(self, keys: Sequence[Any], objects: Sequence[Any]) -> Bitmap:
        came = Bitmap(len(keys))
        for home, places in self._by_home(keys, [one.get_size() for one in objects]):
            if home is None:
                continue
            names = [key_of(keys[at]) for at in places]
            here = home.shelf.get(names, [[objects[at].byte_array] for at in places])
            loaded = [at for at, one in zip(places, here, strict=True) if one]
            came.batched_set(loaded)
            self._notify_keys_accessed([keys[at] for at in loaded])
        return came

    def _by_home(self, keys: Sequence[Any], sizes: Sequence[int]) -> list[tuple[Home | None, Places]]:
        """Where the keys belong, each with the places of those that do, chain by chain."""
        places: dict[tuple[str, int], Places] = defaultdict(list)
        order = sorted(range(len(keys)), key=lambda at: chain_of(keys[at]))  # stable: a chain's order stays
        for at in order:
            places[keys[at].model_name, sizes[at]].append(at)
        return [
            (self._homes.of(model, size) if size else None, of_home) for (model, size), of_home in places.items()
        ]


def _parents(keys: Sequence[Any], names: Sequence[bytes]) -> list[bytes | None]:
    """Each object's predecessor in its chain, where that is of the same task. It only orders eviction."""
    chains = [chain_of(key) for key in keys]
    return [names[at - 1] if at and chains[at - 1] == chains[at] else None for at in range(len(keys))]
