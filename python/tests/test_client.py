"""Both clients against a real server."""

import asyncio
import json
import socket
import threading
import time
import unittest
from unittest import mock

from cairn import Action, AsyncClient, CacheConfig, Client, NewBlock, NoAnswer, Refused, TierConfig
from cairn.aio import MAX_CONNECTIONS
from cairn.errors import (
    CacheExists,
    StaleGeneration,
    TimedOut,
    UnknownCache,
    UnknownKey,
    UnknownLease,
    UnknownPin,
    WrongLength,
)
from cairn.keys import token_keys
from cairn.model import Hinted
from server import PATIENCE_S, ROOT, SHAPE, ServerCase, block, key


class Verbs(ServerCase):
    def test_a_block_is_allocated_written_committed_and_matched(self) -> None:
        self.make()
        slots = self.client.allocate(self.name, 2, lease_ms=60_000)
        for number, slot in enumerate(slots.blocks):
            self.client.write_slot(self.name, slot, slots.lease, block(number))
        new = [
            NewBlock(slots.blocks[0], key(0), metadata={"of": "test"}),
            NewBlock(slots.blocks[1], key(1), parent=key(0), ttl_ms=3_600_000),
        ]
        committed = self.client.commit(self.name, slots.lease, new)
        self.assertEqual(
            [(one.key, one.status) for one in committed.blocks], [(key(0), "committed"), (key(1), "committed")]
        )
        self.assertGreater(self.client.renew(slots.lease, 90_000).expires_at_ms, slots.expires_at_ms)
        self.assertEqual(self.client.release(slots.lease, [slots.blocks[0]]), 1)
        self.assertEqual(self.client.release(slots.lease), 1)
        found = self.client.match(self.name, [key(0), key(1), key(2)], lease_ms=1000)
        self.assertEqual([one.key for one in found.blocks], [key(0), key(1)])
        self.assertEqual(found.blocks[0].tier, "pinned")
        self.assertIsNotNone(found.lease)
        self.assertEqual(self.client.metadata(self.name, key(0)), {"of": "test"})

    def test_hints_count_the_blocks_that_they_changed(self) -> None:
        self.make()
        self.client.put(self.name, "aa", block(1), session="chat")
        self.client.write(self.name, ["bb"], [block(2)], reuse={"within_ms": 5}, session="chat")
        found = self.client.match(self.name, ["aa"], lease_ms=1000, reuse="soon")
        assert found.lease is not None
        self.assertEqual(self.client.release(found.lease, input_tokens=4, reuse="later", session="chat"), 1)
        self.assertEqual(self.client.hint(self.name, "never", session="chat"), Hinted(2, 0, 0))
        self.assertEqual(self.client.hint(self.name, "never", keys=["aa", "cc"]), Hinted(1, 0, 1))
        with self.assertRaises(Refused):
            self.client.hint(self.name, "often", keys=["aa"])  # type: ignore[arg-type]

    def test_a_pin_is_listed_until_it_ends(self) -> None:
        self.make()
        self.client.put(self.name, "aa", block(1))
        pinned, missing = self.client.actions(
            self.name, [Action("pin", keys=["aa"], id="x"), Action("pin", keys=["bb"])]
        )
        self.assertEqual((pinned.id, pinned.outcome, pinned.blocks), ("x", "accepted", 1))
        self.assertEqual((missing.outcome, missing.missing, missing.pin), ("missing", 1, None))
        assert pinned.pin is not None
        self.assertEqual([pin.pin for pin in self.client.pins(self.name).pins], [pinned.pin])
        self.assertEqual(self.client.unpin(pinned.pin), 1)
        self.assertEqual(self.client.pins(self.name).pins, [])
        with self.assertRaises(UnknownPin):
            self.client.unpin(pinned.pin)

    def test_sessions_have_their_blocks_by_tier(self) -> None:
        self.make()
        for number, session in ((1, "chat"), (2, "chat"), (3, "later")):
            self.client.put(self.name, key(number), block(number), tier="pinned", session=session)
        self.client.delete(self.name, key(2))
        found = self.client.sessions(self.name)
        self.assertEqual([one.session for one in found.sessions], ["later", "chat"])
        self.assertEqual((found.sessions[1].blocks, found.sessions[1].missing), ({"pinned": 1}, 1))
        self.assertEqual((found.known, len(self.client.sessions(self.name, limit=1).sessions)), (2, 1))

    def test_contains_names_the_tier_of_each_key(self) -> None:
        self.make()
        self.client.put(self.name, "aa", block(1))
        self.assertEqual(self.client.contains(self.name, ["aa", "bb"]), "p.")
        self.assertEqual(self.client.contains(self.name, ["bbcc", "aa"]), ".p")

    def test_keys_of_different_lengths_match(self) -> None:
        self.make()
        self.client.put(self.name, "aa", block(1))
        self.client.put(self.name, "bbbb", block(2), parent="aa")
        found = self.client.match(self.name, ["aa", "bbbb", "cc"], lease_ms=0)
        self.assertEqual((found.matched, found.lease), (2, None))
        self.assertEqual(found.blocks[1].key, b"\xbb\xbb")

    def test_token_keys_equal_the_servers(self) -> None:
        self.make()
        tokens = list(range(70_000, 70_011))
        keys = token_keys(tokens, SHAPE.page_size, "salt")
        self.assertEqual(len(keys), 2)
        self.client.write(self.name, keys, [block(1), block(2)])
        found = self.client.match_tokens(self.name, tokens, salt="salt", lease_ms=0)
        self.assertEqual([one.key for one in found.blocks], keys)
        self.assertEqual(self.client.match_tokens(self.name, tokens, lease_ms=0).matched, 0)

    def test_one_key_is_put_got_and_deleted(self) -> None:
        self.make()
        self.assertEqual(self.client.put(self.name, key(1), block(1)).status, "committed")
        self.assertEqual(self.client.put(self.name, key(1), block(2)).status, "duplicate")
        self.assertEqual(self.client.get(self.name, key(1)), block(1))
        self.assertEqual(self.client.get(self.name, key(1), layer=1, outer=1), block(1)[-SHAPE.piece_bytes :])
        self.assertTrue(self.client.has(self.name, key(1)))
        self.client.delete(self.name, key(1))
        self.assertFalse(self.client.has(self.name, key(1)))

    def test_many_are_written_and_read(self) -> None:
        self.make()
        answer = self.client.write(self.name, [key(1), key(2)], [block(1), block(2)])
        self.assertEqual([one.status for one in answer.blocks], ["committed", "committed"])
        read = self.client.read(self.name, [key(1), key(2), key(3)])
        self.assertEqual((read.matched, read.block(0), read.block(1)), (2, block(1), block(2)))
        self.assertEqual((len(read), list(read)), (2, [block(1), block(2)]))
        self.assertEqual(self.client.read(self.name, [key(3)]).matched, 0)

    def test_blocks_move_and_are_listed(self) -> None:
        self.make(disk=16)
        self.client.write(self.name, [key(n) for n in range(3)], [block(n) for n in range(3)])
        moved = self.client.transfer(self.name, [key(0)], "disk", mode="copy", wait_ms=PATIENCE_S * 500)
        self.assertEqual((moved.state, moved.ended, moved.failures), ("done", True, []))
        self.assertEqual(self.client.transfer_state(moved.transfer).state, "done")
        first = self.client.blocks(self.name, tier="pinned", state="evictable", limit=2)
        second = self.client.blocks(self.name, tier="pinned", state="evictable", cursor=first.next_cursor)
        self.assertEqual({one.key for one in first.blocks + second.blocks}, {key(n) for n in range(3)})
        self.assertEqual(self.client.evict(self.name, [key(2), key(9)], tier="pinned").missing, 1)
        self.assertGreaterEqual(self.client.clear(self.name).evicted, 2)
        self.assertEqual(self.client.match(self.name, [key(0)], lease_ms=0).matched, 0)

    def test_caches_are_made_shown_and_dropped(self) -> None:
        self.make(disk=8)
        self.make(disk=8)
        shown = self.client.cache_info(self.name)
        assert shown.layout is not None
        self.assertEqual((shown.block_bytes, shown.layout.num_layers), (SHAPE.block_bytes, 2))
        counts = shown.tiers["pinned"].blocks
        assert counts is not None
        self.assertEqual(counts.free, 16)
        with self.assertRaises(CacheExists):
            self.make(disk=9)
        self.assertIn(self.name, [cache.name for cache in self.client.caches()])
        self.client.drop_cache(self.name, force=True)
        with self.assertRaises(UnknownCache) as raised:
            self.client.cache_info(self.name)
        self.assertEqual((raised.exception.status, raised.exception.code), (404, "unknown_cache"))

    def test_a_snapshot_is_made_restored_and_dropped(self) -> None:
        self.make()
        self.client.put(self.name, key(1), block(1))
        self.assertEqual(self.client.make_snapshot(self.name, "s", compress=True, wait_ms=30_000).state, "done")
        self.assertEqual([one.name for one in self.client.snapshots(self.name)], ["s"])
        self.client.clear(self.name)
        self.assertEqual(self.client.restore_snapshot(self.name, "s", wait_ms=30_000).state, "done")
        self.assertEqual(self.client.get(self.name, key(1)), block(1))
        self.client.put(self.name, key(2), block(2))
        replaced = self.client.restore_snapshot(self.name, "s", replace=True, wait_ms=30_000)
        self.assertEqual((replaced.state, replaced.blocks_done), ("done", 1))
        self.assertEqual(self.client.match(self.name, [key(2)], lease_ms=0).matched, 0)
        self.client.drop_snapshot(self.name, "s")

    def test_a_group_of_one(self) -> None:
        self.make()
        self.client.put(self.name, key(1), block(1))
        joined = self.client.join_group("alone", 0, 1)
        self.assertTrue(joined.unique_id)
        agreed = self.client.agree("alone", self.name, [key(1), key(2)], wait_ms=30_000)
        self.assertEqual((agreed.state, agreed.agreed_blocks), ("done", 1))
        reduced = self.client.all_reduce("alone", [3, -4], "max", wait_ms=30_000)
        self.assertEqual((reduced.state, reduced.values), ("done", [3, -4]))
        average = self.client.all_reduce("alone", [0.5, 3], "avg", dtype="float32", wait_ms=30_000)
        self.assertEqual(average.values, [0.5, 3.0])
        self.assertIn("alone", [group.name for group in self.client.groups()])
        self.client.leave_group("alone")

    def test_the_service_reports_its_state(self) -> None:
        self.client.healthy()
        self.client.ready()
        self.assertEqual(self.client.system().runtime, "host")
        system = self.client.system()
        self.assertEqual((system.runtime_fallback, system.devices_left_out), (None, []))
        self.assertEqual(system.warnings, [])
        self.assertEqual(system.parts["agents"], {"blocks": 0, "needs": "engine"})
        self.assertIn(
            ("http_bodies", "host", "normal"),
            [(pool.allocator, pool.device, pool.level) for pool in self.client.system().pools],
        )
        self.assertIn("cairn_build_info", self.client.metrics())

    def test_refusals_have_classes(self) -> None:
        self.make()
        with self.assertRaises(UnknownKey):
            self.client.get(self.name, key(5))
        with self.assertRaises(WrongLength):
            self.client.put(self.name, key(5), b"short")
        with self.assertRaises(UnknownLease):
            self.client.renew("0" * 32, 1000)
        slots = self.client.allocate(self.name, 1)
        old = slots.blocks[0]
        wrong = type(old)(old.tier, old.slot, old.generation + 1)
        with self.assertRaises(StaleGeneration):
            self.client.write_slot(self.name, wrong, slots.lease, block(1))

    def test_every_code_of_the_server_has_a_class(self) -> None:
        document = json.loads((ROOT / "server" / "openapi.json").read_text())
        codes = document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]
        classes = {kind.code for kind in Refused.__subclasses__()}
        self.assertEqual(set(codes) - classes, set())

    def test_tcp_works_like_the_unix_socket(self) -> None:
        self.make()
        with Client(self.server.http, timeout=PATIENCE_S) as client:
            client.put(self.name, key(1), block(1))
        self.assertEqual(self.client.get(self.name, key(1)), block(1))

    def test_events_report_stored_blocks(self) -> None:
        self.make()
        events = self.client.events(cache=self.name, after=0, silence_s=PATIENCE_S)
        first = next(events)  # a gap: the id is from an earlier run of the server
        self.assertEqual(first.kind, "gap")
        self.client.put(self.name, key(1), block(1))
        stored = next(event for event in events if event.kind == "stored")
        self.assertEqual(stored.data["keys"], [key(1).hex()])
        events.close()

    def test_threads_share_a_client(self) -> None:
        self.make(blocks=64)
        failures: list[str] = []

        def work(first: int) -> None:
            for number in range(first, first + 8):
                self.client.put(self.name, key(number), block(number))
                if self.client.get(self.name, key(number)) != block(number):
                    failures.append(f"block {number}")

        threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 64, 8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        self.assertEqual(failures, [])
        self.assertEqual(self.client.match(self.name, [key(n) for n in range(64)], lease_ms=0).matched, 64)


class Restarts(ServerCase):
    def test_kept_connections_are_made_anew(self) -> None:
        self.client.system()
        self.server.kill()
        self.server.start()
        self.make()  # a PUT, over the connection that has ended in the meantime
        self.server.kill()
        with self.assertRaises(NoAnswer):
            self.client.system()
        self.server.start()
        self.client.ready()

    def test_a_non_idempotent_request_succeeds_after_a_restart(self) -> None:
        self.client.system()
        self.server.kill()
        self.server.start()
        with self.assertRaises(UnknownCache):
            self.client.allocate(self.name, 1)


class Deadlines(unittest.TestCase):
    def test_a_silent_server_times_out(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            url = f"http://127.0.0.1:{mute.getsockname()[1]}"
            with self.assertRaises(TimedOut):
                Client(url, timeout=0.1).system()

            async def ask() -> None:
                async with AsyncClient(url, timeout=0.1) as client:
                    await client.system()

            with self.assertRaises(TimedOut):
                asyncio.run(ask())

    def test_a_trickling_answer_does_not_extend_the_timeout(self) -> None:
        stop = threading.Event()
        with socket.create_server(("127.0.0.1", 0)) as slow:

            def trickle() -> None:
                peer, _ = slow.accept()
                with peer:
                    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                    while not stop.wait(0.02):
                        peer.sendall(b"x")

            thread = threading.Thread(target=trickle, daemon=True)
            thread.start()
            began = time.monotonic()
            with self.assertRaises(TimedOut):
                Client(f"http://127.0.0.1:{slow.getsockname()[1]}", timeout=0.3).system()
            self.assertGreaterEqual(time.monotonic() - began, 0.3)
            stop.set()

    def test_a_renewal_that_hangs_leaves_time_for_another(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute, mock.patch("cairn.calls.life.LEAST_RENEWAL_S", 0.0):
            url = f"http://127.0.0.1:{mute.getsockname()[1]}"
            with self.assertRaises(TimedOut):
                Client(url, timeout=PATIENCE_S).renew("l", 400)

            async def renew() -> None:
                async with AsyncClient(url, timeout=PATIENCE_S) as client:
                    await client.renew("l", 400)

            with self.assertRaises(TimedOut):
                asyncio.run(renew())

    def test_a_refused_connection_is_no_answer(self) -> None:
        with self.assertRaises(NoAnswer):
            Client("unix:/nowhere/socket").system()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        with self.assertRaises(NoAnswer):
            Client(f"http://127.0.0.1:{port}").system()

    def test_an_invalid_url_is_a_value_error(self) -> None:
        for url in ("ftp://x", "unix:", "unix://x/y", "http://", "http://h:1/path", "127.0.0.1:7070"):
            with self.subTest(url), self.assertRaises(ValueError):
                Client(url)


class Connections(unittest.IsolatedAsyncioTestCase):
    """An asyncio client's connections, counted by a test server."""

    async def asyncSetUp(self) -> None:
        self.open = self.most = self.served = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.late: asyncio.Queue[bytes] | None = None  # bytes that the server sends after an answer, unrequested
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.addAsyncCleanup(server.wait_closed)
        self.addCleanup(server.close)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self.client = AsyncClient(self.url, timeout=PATIENCE_S)
        self.addAsyncCleanup(self.client.close)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        if self.open == MAX_CONNECTIONS:
            self.answers.set()
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await self.answers.wait()
                self.served += 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                await writer.drain()
                if self.late is not None:
                    writer.write(await self.late.get())
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def test_many_calls_share_a_bounded_number_of_connections(self) -> None:
        self.answers.clear()
        await asyncio.gather(*(self.client.healthy() for _ in range(5 * MAX_CONNECTIONS)))
        self.assertEqual((self.most, self.served), (MAX_CONNECTIONS, 5 * MAX_CONNECTIONS))

    async def test_waiting_for_a_connection_counts_against_the_timeout(self) -> None:
        self.answers.clear()
        async with AsyncClient(self.url, timeout=0.1, max_connections=2) as client:
            results = await asyncio.gather(*(client.healthy() for _ in range(20)), return_exceptions=True)
            self.assertEqual({type(one) for one in results}, {TimedOut})
            client.timeout = PATIENCE_S  # so that both connections are free again
            self.answers.set()
            await asyncio.gather(*(client.healthy() for _ in range(4)))
        with self.assertRaisesRegex(ValueError, "max_connections is 0"):
            AsyncClient(self.url, max_connections=0)

    async def test_bytes_received_on_an_idle_connection_do_not_answer_the_next_call(self) -> None:
        self.late = asyncio.Queue()
        for _ in range(3):
            await self.client.healthy()
            (stream,) = self.client._kept
            before = stream.reader.received_bytes
            self.late.put_nowait(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
            while stream.reader.received_bytes == before:
                await asyncio.sleep(0.001)
        self.assertEqual(self.served, 3)


class Async(ServerCase):
    def test_calls_run_at_the_same_time(self) -> None:
        self.make(blocks=64)

        async def work() -> int:
            async with AsyncClient(self.server.unix, timeout=PATIENCE_S) as client:
                await asyncio.gather(*(client.put(self.name, key(n), block(n)) for n in range(32)))
                got = await asyncio.gather(*(client.get(self.name, key(n)) for n in range(32)))
                self.assertEqual(got, [block(n) for n in range(32)])
                with self.assertRaises(UnknownKey):
                    await client.get(self.name, key(99))
                await client.make_cache(f"{self.name}-2"[-64:], CacheConfig(SHAPE, {"pinned": TierConfig(4)}))
                return (await client.match(self.name, [key(n) for n in range(40)], lease_ms=0)).matched

        self.assertEqual(asyncio.run(work()), 32)

    def test_events(self) -> None:
        self.make()

        async def first_stored() -> list[str]:
            async with AsyncClient(self.server.http, timeout=PATIENCE_S) as client:
                async for event in client.events(cache=self.name, after=0, silence_s=PATIENCE_S):
                    if event.kind == "stored":
                        return list(event.data["keys"])
                    await client.put(self.name, key(1), block(1))
            return []

        self.assertEqual(asyncio.run(first_stored()), [key(1).hex()])

    def test_kept_connections_are_made_anew(self) -> None:
        async def work() -> None:
            async with AsyncClient(self.server.unix, timeout=PATIENCE_S) as client:
                await client.system()
                self.server.kill()
                self.server.start()
                await client.system()

        asyncio.run(work())

    def test_one_client_serves_one_loop_after_the_other(self) -> None:
        self.make()
        self.client.put(self.name, key(1), block(1))
        client = AsyncClient(self.server.unix, timeout=PATIENCE_S)

        async def get() -> bytes:
            return await client.get(self.name, key(1))

        for _ in range(3):
            self.assertEqual(asyncio.run(get()), block(1))

        async def get_beside() -> None:
            await get()
            with self.assertRaisesRegex(RuntimeError, "another running event loop"):
                await asyncio.to_thread(asyncio.run, get())
            await client.close()

        asyncio.run(get_beside())

    def test_it_has_every_method_of_the_blocking_client(self) -> None:
        def verbs(kind: type) -> set[str]:
            return {name for name in vars(kind) if not name.startswith("_")}

        self.assertEqual(verbs(Client), verbs(AsyncClient))


if __name__ == "__main__":
    unittest.main()
