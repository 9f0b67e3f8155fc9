"""SGLang's storage, with stand-ins for SGLang's module, against a real server."""

from __future__ import annotations

import ctypes
import enum
import hashlib
import itertools
import random
import unittest
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from cairn import CacheConfig, Shape, TierConfig
from cairn.engine.options import Unsupported
from server import ServerCase
from stand_ins import has_the_recorded_interface, stand_in

PAGE_TOKENS = 4
HALF = 2048  # keys and values are in separate pieces


class Pools(str, enum.Enum):
    KV = "kv"
    MAMBA = "mamba"
    SWA = "swa"
    INDEXER = "indexer"

    def __str__(self) -> str:
        return self.value


class Policy(str, enum.Enum):
    ALL_PAGES = "all"
    TRAILING_PAGES = "trailing"
    BLOCK_GROUPS = "groups"


class Storage:
    def register_mem_pool_host(self, pool: Any) -> None: ...

    def register_mem_host_pool_v2(self, pool: Any, name: Any) -> None: ...


class Result(SimpleNamespace):
    def __init__(self, pages: int, hits: dict[Any, int], usable: list[int]) -> None:
        super().__init__(pages=pages, hits=hits, usable=usable)


class Pool:
    """A pool whose pages have two pieces, or are flat."""

    page_size = PAGE_TOKENS
    layout = "page_first"
    dtype = "float16"

    def __init__(self, pages: int = 16) -> None:
        self.memory = bytearray(pages * 2 * HALF)
        self._begin = ctypes.addressof((ctypes.c_char * len(self.memory)).from_buffer(self.memory))
        self._values = pages * HALF

    def get_page_buffer_meta(self, indices: Sequence[int]) -> tuple[list[int], list[int]]:
        pages = [indices[at] // PAGE_TOKENS for at in range(0, len(indices), PAGE_TOKENS)]
        pointers = [self._begin + page * HALF + part for page in pages for part in (0, self._values)]
        return pointers, [HALF] * len(pointers)

    def fill(self, page: int, value: int) -> None:
        for begin in (page * HALF, self._values + page * HALF):
            self.memory[begin : begin + HALF] = bytes([value]) * HALF
            value += 100

    def content(self, page: int) -> tuple[int, int]:
        return self.memory[page * HALF], self.memory[self._values + page * HALF]

    def get_dummy_flat_data_page(self) -> Tensor:
        return Tensor(bytes(2 * HALF))


class States(Pool):
    """Each page is a state, which takes one index."""

    page_size = 1

    def get_page_buffer_meta(self, indices: Sequence[int]) -> tuple[list[int], list[int]]:
        return super().get_page_buffer_meta([page * PAGE_TOKENS + token for page in indices for token in range(4)])


class Tensor:
    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)

    def numel(self) -> int:
        return len(self.data)

    def element_size(self) -> int:
        return 1

    def is_contiguous(self) -> bool:
        return True

    def contiguous(self) -> Tensor:
        return self

    def data_ptr(self) -> int:
        return ctypes.addressof((ctypes.c_char * len(self.data)).from_buffer(self.data))


def hashes(count: int, prompt: str = "") -> list[str]:
    return [hashlib.sha256(bytes([number]) + prompt.encode()).hexdigest() for number in range(count)]


def indices(*pages: int) -> list[int]:
    return [page * PAGE_TOKENS + token for page in pages for token in range(PAGE_TOKENS)]


class Storages(ServerCase):
    kind: Any

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        modules: dict[str, Any] = {
            "sglang.srt.mem_cache.hicache_storage": {
                "HiCacheStorage": Storage,
                "PoolHitPolicy": Policy,
                "PoolName": Pools,
                "PoolTransferResult": Result,
            },
            "torch": {"arange": lambda count: list(range(count))},
        }
        stand_in(cls, modules, "cairn.sglang.storage")
        import cairn.sglang

        cls.kind = cairn.sglang.CairnStorage

    def storage(self, pool: Pool | None = None, *others: tuple[Pools, Pool], **more: Any) -> Any:
        """others: the pools that SGLang registers together with that of keys and values."""
        storage = self.unopened(**more)
        storage.register_mem_pool_host(pool or Pool())
        for name, other in others:
            storage.register_mem_host_pool_v2(other, name)
        storage.on_host_pools_registered()
        return storage

    def unopened(self, **more: Any) -> Any:
        in_place = more.pop("in_place", True)
        extra = {"cairn.url": self.server.unix, "cairn.pinned_bytes": 64 * 2 * HALF, "interface_v1": int(in_place)}
        config = {
            "tp_rank": 0,
            "tp_size": 1,
            "pp_rank": 0,
            "pp_size": 1,
            "attn_cp_rank": 0,
            "attn_cp_size": 1,
            "dcp_rank": 0,
            "dcp_size": 1,
            "is_mla_model": False,
            "should_split_heads": False,
            "model_name": self.name,
        }
        config.update({name: more.pop(name) for name in list(more) if name in config})
        storage = self.kind(SimpleNamespace(**config, extra_config={**extra, **more}), {})
        self.addCleanup(storage.close)
        return storage

    def test_it_has_the_recorded_interface_of_sglang(self) -> None:
        # SGLang calls `close` if it exists.
        has_the_recorded_interface(self, self.kind, "sglang", "close")

    def test_pages_are_stored_and_loaded_into_other_pages(self) -> None:
        pool = Pool()
        storage = self.storage(pool)
        for page, value in ((3, 30), (9, 90)):
            pool.fill(page, value)
        self.assertEqual(storage.batch_set_v1(hashes(2), indices(3, 9)), [True, True])
        self.assertEqual(storage.batch_exists(hashes(5)), 2)
        self.assertEqual(storage.batch_get_v1(hashes(3), indices(0, 1, 2)), [True, True, False])
        self.assertEqual([pool.content(page) for page in range(3)], [(30, 130), (90, 190), (0, 0)])

    def test_pages_are_stored_and_loaded_by_tensors(self) -> None:
        with self.assertLogs("sglang.cairn", "WARNING"):
            storage = self.storage(in_place=False)
        pages = [Tensor(bytes([value]) * 2 * HALF) for value in (1, 2)]
        self.assertTrue(storage.batch_set(hashes(2), pages))
        room = [Tensor(bytes(2 * HALF)) for _ in range(3)]
        self.assertEqual(storage.batch_get(hashes(3), room), [room[0], room[1], None])
        self.assertEqual([tensor.data for tensor in room[:2]], [page.data for page in pages])
        self.assertTrue(storage.exists(hashes(1)[0]))

    def test_pages_of_one_form_are_not_read_as_another(self) -> None:
        self.storage().batch_set_v1(hashes(1), indices(0))
        with self.assertLogs("sglang.cairn", "WARNING"):
            self.assertEqual(self.storage(in_place=False).batch_exists(hashes(1)), 0)
        self.assertEqual(self.storage(tp_size=2).batch_exists(hashes(1)), 0)

    def test_ranks_of_a_latent_share_one_cache(self) -> None:
        latent: dict[str, Any] = {"is_mla_model": True, "tp_size": 2}
        self.storage(None, **latent).batch_set_v1(hashes(1), indices(0))
        self.assertEqual(self.storage(None, tp_rank=1, **latent).batch_exists(hashes(1)), 1)

    def test_hints_for_pages_are_passed_on(self) -> None:
        storage = self.storage()
        for first, hint in ((0, {"reuse": "soon", "session": "chat"}), (4, {"reuse": "often", "session": "chat"})):
            extra = SimpleNamespace(prefix_keys=None, extra_info=hint)
            pages = range(first, first + 4)
            stored = storage.batch_set_v1(hashes(12)[first : first + 4], indices(*pages), extra)
            self.assertEqual(stored, [True] * 4)
        hinted = [self.client.hint(one.name, "soon", session="chat").blocks for one in self.client.caches()]
        self.assertEqual(sum(hinted), 4)

    def test_a_prefix_counts_as_far_as_every_pool_has_it(self) -> None:
        storage = self.storage()
        states = Pool()
        storage.register_mem_host_pool_v2(states, Pools.MAMBA)
        keys = hashes(12)
        storage.batch_set_v1(keys, indices(*range(12)))
        ends = SimpleNamespace(name=Pools.MAMBA, keys=[keys[2], keys[10]], host_indices=indices(0, 1))
        self.assertEqual(storage.batch_set_v2([ends]), {Pools.MAMBA: [True, True]})
        trailing = SimpleNamespace(name=Pools.MAMBA, keys=keys[-1:], hit_policy=Policy.TRAILING_PAGES)
        found = storage.batch_exists_v2(keys, [trailing])
        self.assertEqual((found.pages, found.usable), (11, [3, 11]))
        groups = SimpleNamespace(name=Pools.MAMBA, keys=keys, hit_policy=Policy.BLOCK_GROUPS)
        self.assertEqual(storage.batch_exists_v2(keys, [groups]).pages, 12)
        every = SimpleNamespace(name=Pools.MAMBA, keys=keys, hit_policy=Policy.ALL_PAGES)
        self.assertEqual(storage.batch_exists_v2(keys, [every]).pages, 0)
        back = SimpleNamespace(name=Pools.MAMBA, keys=keys[10:], host_indices=indices(4, 5))
        self.assertEqual(storage.batch_get_v2([back]), {Pools.MAMBA: [True, False]})

    def put(self, storage: Any, name: Pools, keys: Sequence[str], prefix: Sequence[str] = ()) -> None:
        """Stores the pool's first pages under these keys, which follow `prefix`."""
        places = indices(*range(len(keys))) if name is not Pools.MAMBA else list(range(len(keys)))
        transfer = SimpleNamespace(name=name, keys=keys, host_indices=places)
        extra = SimpleNamespace(prefix_keys=list(prefix), extra_info=None)
        self.assertEqual(storage.batch_set_v2([transfer], extra), {name: [True] * len(keys)})

    def groups(self) -> dict[str, dict[str, int]]:
        """By name of each cache with KV groups: how many blocks of each group it has."""
        caches = [self.client.cache_info(one.name) for one in self.client.caches() if one.kv_groups]
        return {
            one.name: {name: use.blocks for name, use in one.tiers["pinned"].kv_groups.items()} for one in caches
        }

    def test_pools_that_a_prefix_needs_together_share_a_cache(self) -> None:
        window, states = Pool(), States()
        before = {one.name for one in self.client.caches()}
        storage = self.storage(Pool(), (Pools.MAMBA, states), (Pools.SWA, window))
        (cache,) = [one for one in self.client.caches() if one.name not in before]
        self.assertEqual(
            [(group.name, group.kind, group.layout.block_bytes) for group in cache.kv_groups],
            [("kv", "full", 2 * HALF), ("swa", "window", 2 * HALF), ("mamba", "state", 2 * HALF)],
        )
        keys = hashes(8)
        window.fill(1, 70)
        states.fill(0, 30)
        self.put(storage, Pools.SWA, keys[4:6], keys[:4])
        self.put(storage, Pools.MAMBA, keys[5:6], keys[:5])
        storage.batch_set_v1(keys, indices(*range(8)))
        self.assertEqual(self.groups()[cache.name], {"kv": 8, "swa": 2, "mamba": 1})
        asked = [
            SimpleNamespace(name=Pools.SWA, keys=keys[-2:], hit_policy=Policy.TRAILING_PAGES),
            SimpleNamespace(name=Pools.MAMBA, keys=keys[-1:], hit_policy=Policy.TRAILING_PAGES),
        ]
        found = storage.batch_exists_v2(keys, asked)
        self.assertEqual((found.pages, found.usable), (6, [6]))
        self.assertEqual(found.hits, {Pools.KV: 8, Pools.SWA: 6, Pools.MAMBA: 6})
        back = [
            SimpleNamespace(name=Pools.SWA, keys=keys[4:6], host_indices=indices(8, 9)),
            SimpleNamespace(name=Pools.MAMBA, keys=keys[5:7], host_indices=[7, 8]),
        ]
        self.assertEqual(storage.batch_get_v2(back), {Pools.SWA: [True, True], Pools.MAMBA: [True, False]})
        self.assertEqual((window.content(9), states.content(7)), ((70, 170), (30, 130)))
        self.assertTrue(storage.clear())
        self.assertEqual(self.groups()[cache.name], {"kv": 0, "swa": 0, "mamba": 0})

    def test_prefixes_end_where_all_windows_and_states_are_stored(self) -> None:
        values = random.Random(1)
        storage = self.storage(Pool(), (Pools.MAMBA, States()), (Pools.SWA, Pool()))
        for window in (1, 2, 5):
            for number in range(12):
                count = values.randrange(1, 15)
                keys = hashes(count, f"{window}-{number}")
                shares = {Pools.SWA: 0.8, Pools.MAMBA: 0.6}
                there = {pool: [values.random() < share for _ in keys] for pool, share in shares.items()}
                for pool, has in there.items():
                    self.put(storage, pool, list(itertools.compress(keys, has)))
                storage.batch_set_v1(keys, indices(*range(count)))
                right = [
                    end
                    for end in range(1, count + 1)
                    if there[Pools.MAMBA][end - 1] and all(there[Pools.SWA][max(end - window, 0) : end])
                ]
                asked = [
                    SimpleNamespace(name=Pools.SWA, keys=["?"] * window, hit_policy=Policy.TRAILING_PAGES),
                    SimpleNamespace(name=Pools.MAMBA, keys=["?"], hit_policy=Policy.TRAILING_PAGES),
                ]
                found = storage.batch_exists_v2(keys, asked)
                self.assertEqual(found.pages, max(right, default=0))
                self.assertEqual(found.usable, right[-len(found.usable) :] if right else [])
                # A question about fewer pools does not depend on the others.
                right = [end for end in range(1, count + 1) if there[Pools.MAMBA][end - 1]]
                self.assertEqual(storage.batch_exists_v2(keys, asked[1:]).usable, right)
                self.assertEqual(storage.batch_exists(keys), count)
                self.assertTrue(storage.clear())

    def test_memory_goes_to_the_pool_that_needs_it(self) -> None:
        # Divided evenly, there would be room for 6 pages and 6 states.
        storage = self.storage(Pool(), (Pools.MAMBA, States()), **{"cairn.pinned_bytes": 12 * 2 * HALF})
        asked = SimpleNamespace(name=Pools.MAMBA, keys=["?"], hit_policy=Policy.TRAILING_PAGES)
        for prompt in ("one", "two", "three"):
            keys = hashes(10, prompt)
            # In SGLang's order.
            self.put(storage, Pools.MAMBA, keys[9:], keys[:9])
            self.assertTrue(all(storage.batch_set_v1(keys, indices(*range(10)))))
            self.assertEqual(storage.batch_exists_v2(keys, [asked]).pages, 10)

    def test_a_state_is_stored_with_its_pages_or_not_at_all(self) -> None:
        storage = self.storage(Pool(), (Pools.MAMBA, States()))
        asked = SimpleNamespace(name=Pools.MAMBA, keys=["?"], hit_policy=Policy.TRAILING_PAGES)
        keys = hashes(6)
        self.put(storage, Pools.MAMBA, keys[5:], keys[:5])
        # SGLang stores long prompts in several parts.
        for part, found in ((keys[:3], 0), (keys[3:], 6)):
            storage.batch_set_v1(part, indices(*range(3)), SimpleNamespace(prefix_keys=None, extra_info=None))
            self.assertEqual(storage.batch_exists_v2(keys, [asked]).pages, found)
        other = hashes(3, "other")
        self.put(storage, Pools.MAMBA, other[2:], other[:2])
        with self.assertLogs("sglang.cairn", "WARNING"):
            self.assertEqual(storage.batch_set_v1(other, indices(0)), [False] * 3)
        storage.batch_set_v1(other, indices(*range(3)))
        self.assertEqual(storage.batch_exists_v2(other, [asked]).pages, 0)
        with self.assertLogs("sglang.cairn", "WARNING"):
            for number in range(9):
                self.put(storage, Pools.MAMBA, hashes(1, f"{number}"))

    def test_states_of_ranks_that_share_a_latent_have_caches_of_their_own(self) -> None:
        latent: dict[str, Any] = {"is_mla_model": True, "tp_size": 2}
        pools = [(Pools.INDEXER, Pool()), (Pools.MAMBA, States())]
        ranks = [self.storage(Pool(), *pools, tp_rank=rank, **latent) for rank in range(2)]
        keys = hashes(4)
        self.put(ranks[0], Pools.INDEXER, keys)
        ranks[0].batch_set_v1(keys, indices(*range(4)))
        self.put(ranks[1], Pools.MAMBA, keys[1:2], keys[:1])
        asked = [
            SimpleNamespace(name=Pools.INDEXER, keys=None, hit_policy=Policy.ALL_PAGES),
            SimpleNamespace(name=Pools.MAMBA, keys=["?"], hit_policy=Policy.TRAILING_PAGES),
        ]
        self.assertEqual([rank.batch_exists_v2(keys, asked).usable for rank in ranks], [[], [2]])
        self.assertEqual(ranks[1].batch_exists_v2(keys, asked[:1]).pages, 4)

    def test_a_pool_whose_pages_cannot_be_stored_is_refused_by_name(self) -> None:
        class Bare(States):
            def get_page_buffer_meta(self, indices: Sequence[int]) -> tuple[list[int], list[int]]:
                raise NotImplementedError("it has side states")

        with self.assertRaisesRegex(Unsupported, "pool mamba.*it has side states"):
            self.storage(Pool(), (Pools.MAMBA, Bare()))

    def test_a_named_cache_must_have_the_same_groups(self) -> None:
        name = "named.tp0of1.pp0of1"
        self.client.make_cache(name, CacheConfig(Shape(1, 1, 1, 2 * HALF, 1), {"pinned": TierConfig(4)}))
        with self.assertRaisesRegex(Unsupported, "KV groups"):
            self.storage(Pool(), (Pools.MAMBA, States()), **{"cairn.cache": "named"})

    def test_mismatched_indices_and_keys_move_nothing(self) -> None:
        storage = self.storage()
        with self.assertLogs("sglang.cairn", "WARNING"):
            self.assertEqual(storage.batch_set_v1(hashes(2), indices(0)), [False, False])
            self.assertEqual(storage.batch_get_v1(hashes(2), indices(0)), [False, False])

    def test_a_missing_server_is_a_miss(self) -> None:
        with self.assertLogs("sglang.cairn", "WARNING"):
            storage = self.storage(None, **{"cairn.url": "unix:/nowhere"})
            self.assertEqual(storage.batch_exists(hashes(1)), 0)
            self.assertEqual(storage.batch_set_v1(hashes(1), indices(0)), [False])
            self.assertEqual(storage.batch_get_v1(hashes(1), indices(0)), [False])
            self.assertFalse(storage.clear())

    def test_a_pool_that_fails_is_a_miss(self) -> None:
        storage = self.unopened()
        # It has no method that returns its pages' memory.
        storage.register_mem_pool_host(SimpleNamespace(page_size=PAGE_TOKENS))
        # A pool that was not registered.
        state = SimpleNamespace(
            name=Pools.MAMBA, keys=hashes(1), host_indices=indices(0), hit_policy=Policy.ALL_PAGES
        )
        with self.assertLogs("sglang.cairn", "ERROR"):
            self.assertEqual(storage.batch_exists(hashes(1)), 0)
            self.assertEqual(storage.batch_set_v1(hashes(1), indices(0)), [False])
            self.assertEqual(storage.batch_get_v1(hashes(1), indices(0)), [False])
            self.assertEqual(storage.batch_get_v2([state]), {Pools.MAMBA: [False]})
            self.assertEqual(storage.batch_exists_v2(hashes(1), [state]).pages, 0)
            self.assertFalse(storage.batch_set(hashes(1), [None]))
            self.assertEqual(storage.batch_get(hashes(1), [None]), [None])

    def test_unsupported_configurations_are_refused(self) -> None:
        with self.assertRaisesRegex(Unsupported, "tp_lcm_size"):
            self.storage(should_split_heads=True)
        with self.assertRaisesRegex(Unsupported, "cairn.colour"):
            self.storage(None, **{"cairn.colour": "red"})

    def test_clear_drops_every_pool(self) -> None:
        storage = self.storage()
        storage.batch_set_v1(hashes(1), indices(0))
        self.assertTrue(storage.clear())
        self.assertEqual(storage.batch_exists(hashes(1)), 0)


if __name__ == "__main__":
    unittest.main()
