"""CairnStorage below SGLang's own cache controller and host pools: stores, restarts, loads and compares. Run it
with the environment's Python."""

from __future__ import annotations

import threading
import time
import unittest
from types import SimpleNamespace
from typing import Any

import sglang.srt.mem_cache.pool_host.base as pools
import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo, PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_parallel

from cairn import Client
from server import PATIENCE_S, Server

# By default SGLang makes no pool, however small, on a machine with less free memory than 10 GiB.
pools.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0

PAGE = 8
LAYERS, HEADS, HEAD_DIM = 3, 2, 16
TOKENS = 256
PROMPT = [number * 7 % 1000 for number in range(20 * PAGE)]


def host_pool(layout: str) -> MHATokenToKVPoolHost:
    device = MHATokenToKVPool(TOKENS, PAGE, torch.float16, HEADS, HEAD_DIM, LAYERS, "cpu", False)
    return MHATokenToKVPoolHost(
        device.get_device_pool_infos()[0].buffer_info,
        2,
        0,
        PAGE,
        layout,
        pin_memory=False,
        device_capacity_tokens=TOKENS,
        start_layer=0,
        end_layer=LAYERS - 1,
    )


def state_pool() -> MambaPoolHost:
    conv, temporal = torch.zeros(2, 17, 32, 3, dtype=torch.bfloat16), torch.zeros(2, 17, 4, 16, 16)
    states = MambaStateBufferInfo(temporal=temporal, conv=(conv,))
    return MambaPoolHost(states, 2, 0, device_capacity=16, pin_memory=False, layout="page_first")


class Sglang:
    """SGLang's controller with its own pool."""

    CONTROLLER: Any = HiCacheController

    def __init__(self, url: str, layout: str, *, in_place: bool, model: str = "tiny") -> None:
        self.pool = host_pool(layout)
        device = SimpleNamespace(
            device="cpu", layer_num=LAYERS, register_layer_transfer_counter=lambda counter: None
        )
        self.controller = self.CONTROLLER(
            SimpleNamespace(get_kvcache=lambda: device),
            self.host_pools(),
            PAGE,
            torch.distributed.group.WORLD,
            threading.Event(),
            io_backend="direct",
            storage_backend="dynamic",
            prefetch_threshold=PAGE,
            model_name=model,
            storage_backend_extra_config={
                "backend_name": "cairn",
                "module_path": "cairn.sglang",
                "class_name": "CairnStorage",
                "interface_v1": int(in_place),
                "cairn.url": url,
                "cairn.pinned_bytes": 1 << 20,
                "cairn.disk_bytes": 1 << 20,
            },
        )
        self.storage = self.controller.storage_backend

    def host_pools(self) -> Any:
        return self.pool

    def fill(self, indices: torch.Tensor, seed: int) -> torch.Tensor:
        """Fills the pages with random bytes and returns their content."""
        random = torch.Generator().manual_seed(seed)
        for page in indices.split(PAGE):
            flat = self.pool.get_dummy_flat_data_page()
            flat.copy_(torch.randn(flat.shape, generator=random).to(flat.dtype))
            self.pool.set_from_flat_data_page(int(page[0]), flat)
        return self.content(indices)

    def content(self, indices: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.pool.get_data_page(int(page[0])).clone() for page in indices.split(PAGE)])

    def write(self, tokens: list[int], seed: int) -> torch.Tensor:
        """Writes a prompt's pages on the controller's own thread."""
        indices = self.pool.alloc(len(tokens))
        content = self.fill(indices, seed)
        hashes = get_storage_hash_str(tokens, page_size=PAGE)
        self.controller.write_storage(indices, tokens, hashes)
        done = self.controller.ack_backup_queue.get(timeout=PATIENCE_S)
        self.pool.free(indices)
        self.written = done.completed_tokens
        return content

    def read(self, tokens: list[int]) -> torch.Tensor:
        """The pages that the controller's own threads find and load."""
        operation = self.controller.prefetch("r", tokens)
        found = self.controller.prefetch_hit_queue.get(timeout=PATIENCE_S)
        assert found is operation
        indices = self.pool.alloc(operation.storage_hit_count)
        if not len(indices):
            return torch.empty(0)
        self.fill(indices, 999)
        operation.host_indices = indices
        self.controller.prefetch_buffer.put(operation)
        tokens_done = 0
        while not (ack := self.controller.ack_prefetch_queue.get(timeout=PATIENCE_S)).completed_req:
            tokens_done = ack.completed_tokens or tokens_done
        content = self.content(indices[:tokens_done]) if tokens_done else torch.empty(0)
        self.pool.free(indices)
        return content

    def close(self) -> None:
        self.controller.detach_storage_backend()


class HybridSglang(Sglang):
    """SGLang's controller for models with windows and states."""

    CONTROLLER = HybridCacheController
    WINDOW_PAGES = 3

    def host_pools(self) -> Any:
        self.window, self.states = host_pool("page_first"), state_pool()
        pools = ((PoolName.KV, self.pool), (PoolName.SWA, self.window), (PoolName.MAMBA, self.states))
        device = SimpleNamespace(layer_num=LAYERS)
        return HostPoolGroup(
            [PoolEntry(name, pool, device, lambda layer: layer, name == PoolName.KV) for name, pool in pools]
        )

    def write_all(self, tokens: list[int], seed: int) -> list[torch.Tensor]:
        """Writes a prompt's pages, its last window and its state. Returns their content."""
        keys = get_storage_hash_str(tokens, page_size=PAGE)
        pages = self.pool.alloc(len(tokens))
        window, state = self.window.alloc(self.WINDOW_PAGES * PAGE), self.states.alloc(1)
        content = self.fill(pages, seed)
        random = torch.Generator().manual_seed(seed)
        for pool, places in ((self.window, window[::PAGE]), (self.states, state)):
            for place in places:
                flat = pool.get_dummy_flat_data_page()
                flat.copy_(torch.randint(0, 60, flat.shape, generator=random).to(flat.dtype))
                pool.set_from_flat_data_page(int(place), flat)
        contents = [content, self.pages(self.window, window[::PAGE]), self.pages(self.states, state)]
        trailing = {"hit_policy": PoolHitPolicy.TRAILING_PAGES}
        extra = [
            PoolTransfer(PoolName.SWA, host_indices=window, keys=keys[-self.WINDOW_PAGES :], **trailing),
            PoolTransfer(PoolName.MAMBA, host_indices=state, keys=keys[-1:], **trailing),
        ]
        self.controller.write_storage(pages, tokens, keys, prefix_keys=[], extra_pools=extra)
        done = self.controller.ack_backup_queue.get(timeout=PATIENCE_S)
        assert done.completed_tokens == len(tokens)
        for pool, places in ((self.pool, pages), (self.window, window), (self.states, state)):
            pool.free(places)
        return contents

    def read_all(self, tokens: list[int]) -> list[torch.Tensor]:
        """What the controller's own threads find and load: pages, the window before their end, and the state."""
        window, state = self.window.alloc(self.WINDOW_PAGES * PAGE), self.states.alloc(1)
        trailing = {"hit_policy": PoolHitPolicy.TRAILING_PAGES}
        extra = [
            PoolTransfer(PoolName.SWA, host_indices=window, keys=["?"] * self.WINDOW_PAGES, **trailing),
            PoolTransfer(PoolName.MAMBA, host_indices=state, keys=["?"], **trailing),
        ]
        operation = self.controller.prefetch(SimpleNamespace(rid="r"), tokens, extra_pools=extra)
        assert self.controller.prefetch_hit_queue.get(timeout=PATIENCE_S) is operation
        found = []
        if operation.storage_hit_count:
            pages = self.pool.alloc(operation.storage_hit_count)
            self.fill(pages, 999)
            operation.host_indices = pages
            self.controller.prefetch_buffer.put(operation)
            loaded, hits = 0, dict[Any, int]()
            while not (ack := self.controller.ack_prefetch_queue.get(timeout=PATIENCE_S)).completed_req:
                loaded, hits = ack.completed_tokens or loaded, ack.pool_hits or hits
            assert loaded == len(pages)
            assert (hits[PoolName.SWA], hits[PoolName.MAMBA]) == (self.WINDOW_PAGES, 1)
            found = [self.content(pages), self.pages(self.window, window[::PAGE]), self.pages(self.states, state)]
            self.pool.free(pages)
        self.window.free(window)
        self.states.free(state)
        return found

    def pages(self, pool: Any, places: torch.Tensor) -> torch.Tensor:
        return torch.stack([pool.get_data_page(int(place)).clone() for place in places])


class SglangStorage(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        cls.addClassCleanup(torch.distributed.destroy_process_group)
        sizes = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_dcp_size": 1, "attn_dcp_rank": 0}
        alone = get_parallel().override(**sizes, dp_size=1, enable_dp_attention=False)
        alone.__enter__()
        cls.addClassCleanup(alone.__exit__, None, None, None)

    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.close)

    def engine(self, layout: str = "page_first", in_place: bool = True, **more: Any) -> Sglang:
        engine = Sglang(self.server.unix, layout, in_place=in_place, **more)
        self.addCleanup(engine.close)
        return engine

    def test_an_engine_reads_what_another_wrote_also_after_a_restart(self) -> None:
        for in_place in (True, False):
            for layout in ("layer_first", "page_first", "page_first_direct"):
                with self.subTest(layout=layout, in_place=in_place):
                    first = self.engine(layout, in_place, model=f"{layout}-{in_place}")
                    content = first.write(PROMPT, 1)
                    self.assertEqual(first.written, len(PROMPT))
                    second = self.engine(layout, in_place, model=f"{layout}-{in_place}")
                    self.assertTrue(torch.equal(second.read([*PROMPT, *range(50)]), content))
        self.server.until_stored(20, "disk")
        self.server.kill()
        self.server.start()
        third = self.engine(layout, in_place, model=f"{layout}-{in_place}")
        self.assertTrue(torch.equal(third.read(PROMPT), content))

    def test_a_prompt_that_shares_a_prefix_reads_the_prefix(self) -> None:
        engine = self.engine()
        content = engine.write(PROMPT, 1)
        other = [*PROMPT[: 5 * PAGE], *range(2000, 2000 + 5 * PAGE)]
        self.assertTrue(torch.equal(engine.read(other), content[:5]))
        self.assertEqual(engine.storage.batch_exists(get_storage_hash_str(other, page_size=PAGE)), 5)

    def test_layouts_and_models_share_nothing(self) -> None:
        self.engine("page_first").write(PROMPT, 1)
        for layout, in_place, model in (
            ("layer_first", True, "tiny"),
            ("page_first", False, "tiny"),
            ("page_first", True, "other"),
        ):
            self.assertEqual(len(self.engine(layout, in_place, model=model).read(PROMPT)), 0)

    def test_a_lost_server_is_a_miss_and_is_found_again(self) -> None:
        engine = self.engine()
        content = engine.write(PROMPT, 1)
        self.server.until_stored(20, "disk")
        self.server.kill()
        self.assertEqual(len(engine.read(PROMPT)), 0)
        engine.write(PROMPT[PAGE:], 2)
        self.assertEqual(engine.written, 0)
        self.server.start()
        deadline = time.monotonic() + PATIENCE_S
        while not len(read := engine.read(PROMPT)):
            self.assertLess(time.monotonic(), deadline)
        self.assertTrue(torch.equal(read, content))

    def test_pools_beside_keys_and_values(self) -> None:
        engine = self.engine()
        storage, states = engine.storage, host_pool("page_first")
        storage.register_mem_host_pool_v2(states, PoolName.MAMBA)
        hashes = get_storage_hash_str(PROMPT, page_size=PAGE)
        engine.write(PROMPT, 1)
        indices = states.alloc(2 * PAGE)
        for page in indices.split(PAGE):
            states.set_from_flat_data_page(int(page[0]), torch.full((PAGE * LAYERS * HEADS * HEAD_DIM * 2,), 3.0))
        ends = [hashes[4], hashes[14]]  # the ends of two prompts
        transfer = PoolTransfer(PoolName.MAMBA, host_indices=indices, keys=ends)
        self.assertEqual(
            storage.batch_set_v2([transfer], HiCacheStorageExtraInfo()), {PoolName.MAMBA: [True, True]}
        )
        trailing = PoolTransfer(PoolName.MAMBA, keys=hashes[-1:], hit_policy=PoolHitPolicy.TRAILING_PAGES)
        found = storage.batch_exists_v2(hashes, [trailing])
        self.assertEqual((found.kv_hit_pages, found.restorable_prefix_pages), (15, [5, 15]))
        self.assertEqual(found.extra_pool_hit_pages, {PoolName.KV: 20, PoolName.MAMBA: 15})
        every = PoolTransfer(PoolName.MAMBA, keys=hashes)
        self.assertEqual(storage.batch_exists_v2(hashes, [every]).kv_hit_pages, 0)

        into = states.alloc(2 * PAGE)
        back = PoolTransfer(PoolName.MAMBA, host_indices=into, keys=[hashes[14], hashes[15]])
        self.assertEqual(storage.batch_get_v2([back]), {PoolName.MAMBA: [True, False]})
        self.assertTrue((states.get_data_page(int(into[0])) == 3.0).all())

    def hybrid(self) -> HybridSglang:
        engine = HybridSglang(self.server.unix, "page_first", in_place=True)
        self.addCleanup(engine.close)
        return engine

    def are_equal(self, found: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        self.assertEqual([one.shape for one in found], [one.shape for one in written])
        for one, other in zip(found, written, strict=True):
            self.assertTrue(torch.equal(one, other))

    def test_windows_and_states_are_loaded_with_the_prefix_that_they_end(self) -> None:
        first, short = self.hybrid(), PROMPT[: 9 * PAGE]
        written = {len(prompt): first.write_all(prompt, seed) for prompt, seed in ((short, 1), (PROMPT, 2))}
        # The pages of the shorter prompt were there; its window and its state are its own.
        with Client(self.server.unix) as client:
            (cache,) = client.caches()
            uses = client.cache_info(cache.name).tiers["pinned"].kv_groups
        self.assertEqual({name: use.blocks for name, use in uses.items()}, {"kv": 20, "swa": 6, "mamba": 2})
        second = self.hybrid()
        parting = [*PROMPT[: 12 * PAGE], *range(2000, 2000 + 4 * PAGE)]
        for prompt, length in ((PROMPT, len(PROMPT)), (parting, len(short)), (range(3000, 3100), 0)):
            found = second.read_all(list(prompt))
            if length == len(PROMPT):
                # Pages that were there keep their first content.
                written[length][0][:9] = written[len(short)][0]
            self.are_equal(found, written.get(length, []))
        self.server.until_stored(28, "disk")
        self.server.kill()
        self.server.start()
        self.are_equal(self.hybrid().read_all(PROMPT), written[len(PROMPT)])

    def test_clear_drops_everything(self) -> None:
        engine = self.engine()
        engine.write(PROMPT, 1)
        self.assertTrue(engine.storage.clear())
        self.assertEqual(len(engine.read(PROMPT)), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
