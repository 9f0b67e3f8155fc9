"""LMCache's adapter, with stand-ins for LMCache's modules, against a real server."""

from __future__ import annotations

import os
import select
import unittest
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from cairn.engine.options import Unsupported
from server import PATIENCE_S, ServerCase
from stand_ins import has_the_recorded_interface, stand_in

SIZE = 4096


class Bitmap:
    def __init__(self, size: int) -> None:
        self.bits: set[int] = set()

    def batched_set(self, places: Iterable[int]) -> None:
        self.bits |= set(places)

    def test(self, at: int) -> bool:
        return at in self.bits


class StoreResult:
    def __init__(self, success: bool, moved_bytes: int) -> None:
        self.of = (success, moved_bytes)


class Adapter:
    def __init__(self) -> None:
        self.notified: list[Any] = []

    def _notify_keys_stored(self, keys: Sequence[Any], sizes: Sequence[int]) -> None:
        self.notified.append(("stored", len(keys), sum(sizes)))

    def _notify_keys_accessed(self, keys: Sequence[Any]) -> None:
        self.notified.append(("accessed", len(keys)))


class Notifier:
    def __init__(self) -> None:
        self._ends = os.pipe()

    def fileno(self) -> int:
        return self._ends[0]

    def notify(self) -> None:
        os.write(self._ends[1], b"x")

    def close(self) -> None:
        for end in self._ends:
            os.close(end)


@dataclass(frozen=True)
class Key:
    chunk_hash: bytes
    model_name: str
    kv_rank: int = 0
    object_group_id: int = 0
    cache_salt: str = ""


class Object:
    def __init__(self, value: int = 0, size: int = SIZE) -> None:
        self.data = bytearray([value]) * size

    def get_size(self) -> int:
        return len(self.data)

    @property
    def byte_array(self) -> memoryview:
        return memoryview(self.data)


class Adapters(ServerCase):
    kind: Any

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        modules: dict[str, Any] = {
            "lmcache.lmcache_native": {"Bitmap": Bitmap},
            "lmcache.v1.distributed.internal_api": {"L2StoreResult": StoreResult},
            "lmcache.v1.distributed.l2_adapters.base": {"L2AdapterInterface": Adapter},
            "lmcache.v1.platform.event_notifier": {"create_event_notifier": Notifier},
        }
        stand_in(cls, modules, "cairn.lmcache.adapter")
        import cairn.lmcache

        cls.kind = cairn.lmcache.CairnAdapter

    def adapter(self, **more: Any) -> Any:
        adapter = self.kind({"cairn.url": self.server.unix, "cairn.pinned_bytes": 16 * SIZE, **more})
        self.addCleanup(adapter.close)
        return adapter

    def keys(self, count: int, **more: Any) -> list[Key]:
        return [Key(bytes([number]) * 16, self.name, **more) for number in range(count)]

    def wait(self, file: int) -> None:
        ready, _, _ = select.select([file], [], [], PATIENCE_S)
        self.assertTrue(ready, "no notification came")
        os.read(file, 1)

    def store(self, adapter: Any, keys: Sequence[Key], objects: Sequence[Object]) -> tuple[bool, int]:
        task = adapter.submit_store_task(keys, objects)
        self.wait(adapter.get_store_event_fd())
        done: tuple[bool, int] = adapter.pop_completed_store_tasks()[task].of
        return done

    def look_up(self, adapter: Any, keys: Sequence[Key], size: int | None = SIZE) -> list[int]:
        shape = SimpleNamespace(numel=lambda: size)
        layout = SimpleNamespace(shapes=[shape], dtypes=[SimpleNamespace(itemsize=1)])
        layouts = {} if size is None else {key.object_group_id: layout for key in keys}
        task = adapter.submit_lookup_and_lock_task(keys, layouts)
        self.wait(adapter.get_lookup_and_lock_event_fd())
        return sorted(adapter.query_lookup_and_lock_result(task).bits)

    def load(self, adapter: Any, keys: Sequence[Key], objects: Sequence[Object]) -> list[int]:
        task = adapter.submit_load_task(keys, objects)
        self.wait(adapter.get_load_event_fd())
        found = adapter.query_load_result(task)
        self.assertIsNone(adapter.query_load_result(task))  # a result can be taken once
        return sorted(found.bits)

    def test_it_has_the_recorded_interface_of_lmcache(self) -> None:
        has_the_recorded_interface(self, self.kind, "lmcache")

    def test_objects_are_stored_and_loaded(self) -> None:
        adapter, keys = self.adapter(), self.keys(3)
        self.assertEqual(self.store(adapter, keys[:2], [Object(1), Object(2)]), (True, 2 * SIZE))
        self.assertEqual(self.look_up(adapter, keys), [0, 1])
        room = [Object(), Object(), Object()]
        self.assertEqual(self.load(adapter, keys, room), [0, 1])
        self.assertEqual([one.data[0] for one in room], [1, 2, 0])
        self.assertEqual(adapter.notified, [("stored", 2, 2 * SIZE), ("accessed", 2)])

    def test_objects_of_several_sizes_and_gaps(self) -> None:
        adapter, small, large = self.adapter(), self.keys(4), self.keys(2, object_group_id=1)
        stored = [small[0], large[0], small[3]]
        self.store(adapter, stored, [Object(1), Object(2, 2 * SIZE), Object(3)])
        wanted = [*small, *large]
        room = [*(Object() for _ in small), *(Object(0, 2 * SIZE) for _ in large)]
        self.assertEqual(self.load(adapter, wanted, room), [0, 3, 4])
        self.assertEqual([one.data[0] for one in room], [1, 0, 0, 3, 2, 0])
        self.assertEqual(len(adapter.report_status()["caches"]), 2)

    def test_objects_larger_than_a_row_are_stored(self) -> None:
        # The size of 256 tokens of a model with 32 layers.
        size = 32 << 20
        adapter, keys = self.adapter(**{"cairn.pinned_bytes": size}), self.keys(1)
        self.assertEqual(self.store(adapter, keys, [Object(1, size)]), (True, size))
        room = Object(0, size)
        self.assertEqual(self.load(adapter, keys, [room]), [0])
        self.assertTrue(room.data == bytearray([1]) * size)

    def test_any_difference_makes_another_object(self) -> None:
        adapter, keys = self.adapter(), self.keys(1)
        self.store(adapter, keys, [Object(1)])
        for other in ({"kv_rank": 1}, {"object_group_id": 1}, {"cache_salt": "s"}):
            self.assertEqual(self.look_up(adapter, self.keys(1, **other)), [])
        self.assertEqual(self.look_up(adapter, keys), [0])

    def test_without_a_layout_the_known_sizes_are_searched(self) -> None:
        adapter, keys = self.adapter(), self.keys(3)
        self.store(adapter, keys[:1], [Object(1)])
        self.store(adapter, keys[2:], [Object(2, 2 * SIZE)])
        self.assertEqual(self.look_up(adapter, keys, size=None), [0, 2])

    def test_found_objects_are_held_until_unlocked(self) -> None:
        adapter, keys = self.adapter(), self.keys(2)
        self.store(adapter, keys, [Object(1), Object(2)])
        self.look_up(adapter, keys)
        self.look_up(adapter, keys[:1])
        (cache,) = adapter.report_status()["caches"]
        self.assertEqual(adapter.report_status()["held_objects"], 3)
        self.assertEqual(self.client.clear(cache).leased, 2)
        adapter.submit_unlock(keys)
        adapter.submit_unlock(keys[:1])
        adapter._lookups.drain()
        self.assertEqual(self.client.clear(cache).leased, 0)

    def test_every_task_ends_without_a_server(self) -> None:
        adapter, keys = self.adapter(**{"cairn.url": "unix:/nowhere"}), self.keys(1)
        with self.assertLogs("lmcache.cairn", "WARNING"):
            self.assertEqual(self.store(adapter, keys, [Object(1)]), (False, 0))
            self.assertEqual(self.look_up(adapter, keys), [])
            self.assertEqual(self.load(adapter, keys, [Object()]), [])
            adapter.delete(keys)
        self.assertFalse(adapter.report_status()["is_healthy"])

    def test_the_number_of_sizes_is_bounded(self) -> None:
        adapter = self.adapter()
        adapter._caches._caches = {(f"m{number}", 1): None for number in range(32)}
        with self.assertLogs("lmcache.cairn", "WARNING"):
            self.assertEqual(self.store(adapter, self.keys(1), [Object(1)]), (False, 0))

    def test_an_unknown_option_is_refused(self) -> None:
        with self.assertRaisesRegex(Unsupported, "cairn.colour"):
            self.adapter(**{"cairn.colour": "red"})


if __name__ == "__main__":
    unittest.main()
