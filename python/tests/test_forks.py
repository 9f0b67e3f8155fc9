"""Processes that fork while a client, a mapped tier or an engine's helpers are in use."""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

from cairn import AgentMemory, AsyncClient, Client, LeaseLost, TierView
from cairn.engine.copy_helper import SHARED_BYTES, CopyHelper
from cairn.engine.jobs import Jobs
from cairn.engine.lookup import Finder, Lookups
from cairn.engine.report import Report
from cairn.errors import UnknownKey
from cairn.leases import LeaseKeeper
from cairn.model import Match, MatchedBlock
from cairn.tier_view import ReadBlocks, WriteBlocks
from server import PATIENCE_S, SHAPE, ServerCase, block, key
from test_agents import BLOCKS, REGIONS, sealed
from test_security import SecuredCase

FORKS_IN_C = """
import cairn, ctypes, os, sys
url, cache, *keys = sys.argv[1:]
client = cairn.Client(url)
blocks = [client.get(cache, key) for key in keys]
own, number = [], 0  # four processes with a key each
for _ in range(2):
    child = ctypes.PyDLL(None).fork()
    own, number = ([*own, child], number * 2) if child else ([], number * 2 + 1)
for _ in range(50):
    assert client.get(cache, keys[number]) == blocks[number]
os.write(1, b"right ")
for child in own:
    assert os.waitpid(child, 0)[1] == 0
"""


class Child:
    """A forked process that runs a function. `result` waits for its result, or for the name of the exception it
    raised."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._end, end = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            signal.alarm(PATIENCE_S)  # ends a child that hangs
            try:
                result = str(act())
            except BaseException as error:
                result = type(error).__name__
            os.write(end, result.encode())
            os._exit(0)
        os.close(end)

    @property
    def result(self) -> str:
        with os.fdopen(self._end) as file:
            text = file.read()
        os.waitpid(self._process, 0)
        return text


class Forked(ServerCase):
    def setUp(self) -> None:
        super().setUp()
        self.make(blocks=16)
        for number in range(4):
            self.client.put(self.name, key(number), block(number))

    def read_many(self, number: int) -> str:
        for _ in range(50):
            if self.client.get(self.name, key(number)) != block(number):
                return "another's block"
        return "right"

    def test_each_process_reads_over_its_own_connections(self) -> None:
        for url in (self.server.unix, self.server.http):
            self.client = Client(url, timeout=PATIENCE_S)
            self.addCleanup(self.client.close)
            self.read_many(0)  # so that a connection is kept
            children = [Child(functools.partial(self.read_many, number)) for number in (1, 2, 3)]
            self.assertEqual(self.read_many(0), "right")
            self.assertEqual([child.result for child in children], ["right"] * 3)

    def test_a_grandchild_reads_over_its_own_connections(self) -> None:
        child = Child(lambda: [Child(lambda: self.read_many(1)).result, self.read_many(2)])
        self.assertEqual(child.result, "['right', 'right']")

    def test_a_child_forked_in_c_reads_over_its_own_connections(self) -> None:
        """Python's hooks do not run in it, as in uWSGI's workers. It may not have threads either, so another
        process without threads forks it."""
        done = subprocess.run(
            [
                *(sys.executable, "-B", "-W", "ignore", "-c", FORKS_IN_C, self.server.unix, self.name),
                *(key(number).hex() for number in range(4)),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            timeout=PATIENCE_S,
        )
        self.assertEqual((done.returncode, done.stdout.split()), (0, [b"right"] * 4), done.stderr)

    def test_a_child_does_not_wait_for_a_lock_of_its_parents_thread(self) -> None:
        view = TierView(self.client, self.name)
        with self.client._lock, view._lock, view._keeper._changed:
            child = Child(lambda: [self.read_many(1), len(view.read([key(1)]))])
        self.assertEqual(child.result, "['right', 1]")

    def test_a_child_does_not_take_its_parents_events(self) -> None:
        events = self.client.events(cache=self.name, after=0, silence_s=PATIENCE_S)
        while next(events).data.get("keys") != [key(3).hex()]:
            pass  # skips the events so far
        self.client.put(self.name, key(9), block(9))
        self.assertEqual(Child(lambda: next(events)).result, "NoAnswer")
        self.assertEqual(next(events).data["keys"], [key(9).hex()])
        events.close()

    def test_a_child_uses_only_its_own_leases(self) -> None:
        view = TierView(self.client, self.name)

        def read() -> bytes:
            with view.read([key(1)]) as held:
                return b"".join(held[0].pieces())

        with view.read([key(1)]) as held:
            self.assertEqual(Child(read).result, str(block(1)))
            self.assertEqual(len(self.client.leases(self.name).leases), 1)
            held.check()

    def test_a_child_does_not_release_its_parents_leases(self) -> None:
        view = TierView(self.client, self.name)

        def leave(held: ReadBlocks, slots: WriteBlocks, kind: type[BaseException] | None) -> None:
            with held, slots:
                if kind is not None:
                    raise kind

        for kind in (None, SystemExit, KeyError):
            with view.read([key(1), key(2)]) as held, view.write(1) as slots:
                left = Child(functools.partial(leave, held, slots, kind))
                self.assertEqual(left.result, "LeaseLost" if kind is None else kind.__name__)
                self.assertEqual(Child(held.release).result, "None")
                for act in (held.end, held.check, held.rows, functools.partial(slots.commit, [key(9)])):
                    self.assertEqual(Child(act).result, "LeaseLost")
                self.assertEqual(len(self.client.leases(self.name).leases), 2)
        self.assertEqual(self.client.leases(self.name).leases, [])
        self.assertFalse(self.client.has(self.name, key(9)))

    def test_a_child_maps_the_tier_again(self) -> None:
        mapped_in: list[int] = []
        view = TierView(self.client, self.name, on_map=lambda memory: mapped_in.append(os.getpid()))

        def mapped() -> bool:
            return "memfd:cairn" in Path("/proc/self/maps").read_text()

        def read() -> object:
            before = mapped()
            with view.read([key(1)]) as held:
                return [before, mapped_in == [os.getppid(), os.getpid()], b"".join(held[0].pieces()) == block(1)]

        self.assertTrue(mapped())
        self.assertEqual(Child(read).result, "[False, True, True]")
        self.assertEqual(Child(lambda: [view.block_bytes, len(view.read([key(77)]))]).result, "[256, 0]")
        again = pickle.loads(pickle.dumps(TierView(self.client, self.name)))
        with again.read([key(1)]) as held:
            self.assertEqual(b"".join(held[0].pieces()), block(1))

    def test_a_child_neither_ends_nor_keeps_an_agent(self) -> None:
        file, memory = sealed()
        self.addCleanup(os.close, file)
        self.addCleanup(memory.close)
        registered = AgentMemory(self.client, "forked", SHAPE, BLOCKS, REGIONS, [file])
        self.assertEqual(Child(registered.close).result, "None")
        self.assertEqual([one.name for one in self.client.agents()], ["forked"])
        goes_on, go_on = os.pipe()
        lives = Child(lambda: os.read(goes_on, 1))
        registered._client.close()  # as if the parent had ended
        deadline = time.monotonic() + PATIENCE_S
        while self.client.agents():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        os.write(go_on, b"x")
        self.assertEqual(lives.result, "b'x'")

    def test_an_asyncio_client_serves_the_childs_loop(self) -> None:
        client = AsyncClient(self.server.unix, timeout=PATIENCE_S)

        async def read(number: int) -> str:
            got = await asyncio.gather(*(client.get(self.name, key(number)) for _ in range(8)))
            return "right" if set(got) == {block(number)} else "another's block"

        async def fork_and_read() -> list[str]:
            result = [await read(0)]
            result += [Child(lambda: asyncio.run(read(1))).result, Child(lambda: asyncio.run(read(2))).result]
            result.append(await read(3))  # over the kept connections
            await client.close()
            return result

        self.assertEqual(asyncio.run(fork_and_read()), ["right"] * 4)

    def test_a_client_is_pickled_into_a_spawned_process(self) -> None:
        for method in ("spawn", "fork"):
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
                self.assertEqual(pool.submit(self.client.get, self.name, key(1)).result(), block(1))
                with self.assertRaises(UnknownKey) as raised:
                    pool.submit(self.client.get, self.name, key(77)).result()
            self.assertEqual((raised.exception.status, raised.exception.code), (404, "unknown_key"))

    def test_clients_and_answers_can_be_copied_and_pickled(self) -> None:
        for client in (copy.copy(self.client), pickle.loads(pickle.dumps(self.client))):
            self.assertEqual(client.get(self.name, key(1)), block(1))
            client.close()
        found = self.client.match(self.name, [key(1), key(2)], lease_ms=0)
        self.assertEqual(pickle.loads(pickle.dumps(found)), found)


class Secured(SecuredCase):
    def test_each_process_reads_over_its_own_tls_connection(self) -> None:
        client = Client(self.url, "admin-token", self.certificate, timeout=PATIENCE_S)
        self.addCleanup(client.close)
        later = AsyncClient(self.url, "admin-token", self.certificate, timeout=PATIENCE_S)

        async def ask() -> list[object]:
            await asyncio.gather(*(later.caches() for _ in range(4)))
            return [await later.caches()]

        async def fork_and_ask() -> None:
            await ask()
            self.assertEqual(Child(lambda: asyncio.run(ask())).result, "[[]]")
            await ask()
            await later.close()

        self.assertEqual(client.caches(), [])
        self.assertEqual(Child(client.caches).result, "[]")
        self.assertEqual(client.caches(), [])
        asyncio.run(fork_and_ask())


class Sockets(unittest.TestCase):
    def test_a_connection_ends_when_the_parent_closes_it_although_a_child_lives(self) -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        with socket.create_server(("127.0.0.1", 0)) as door:
            door.settimeout(PATIENCE_S)
            client = Client(f"http://127.0.0.1:{door.getsockname()[1]}", timeout=PATIENCE_S)
            asks = threading.Thread(target=client.healthy)
            asks.start()
            peer, _ = door.accept()
            with peer:
                peer.settimeout(PATIENCE_S)
                peer.recv(4096)
                peer.sendall(answer)
                asks.join(PATIENCE_S)
                goes_on, go_on = os.pipe()
                child = Child(lambda: os.read(goes_on, 1))
                client.close()
                self.assertEqual(peer.recv(4096), b"")
                os.write(go_on, b"x")
                self.assertEqual(child.result, "b'x'")


class Threads(unittest.TestCase):
    def setUp(self) -> None:
        self.report = Report(logging.getLogger("cairn.test"))

    def test_a_child_renews_only_its_own_leases(self) -> None:
        client = mock.Mock()
        keeper = LeaseKeeper(client)
        of_parent = keeper.keep("parent", 3_600_000, time.monotonic())  # starts the thread
        self.addCleanup(keeper.drop, of_parent)

        def renewed() -> list[object]:
            done = threading.Event()
            client.renew.side_effect = lambda *_: done.set()
            keeper.keep("child", 30_000, time.monotonic() - 15)
            done.wait(PATIENCE_S)
            keeper.drop(of_parent)
            return [client.renew.call_args_list, client.release.call_args_list, of_parent.is_held(0.0)]

        self.assertEqual(Child(renewed).result, "[[call('child', 30000)], [], False]")
        self.assertTrue(of_parent.is_held(time.monotonic()))

    def test_a_child_copies_with_its_own_helper(self) -> None:
        helper = CopyHelper()
        self.addCleanup(helper.close)

        def share() -> int:
            both = threading.Barrier(2)  # passes if two threads copy at once
            helper.share(lambda _: self.assertLess(both.wait(PATIENCE_S), 2), 2, SHARED_BYTES)
            return 2

        self.assertEqual(share(), 2)
        self.assertEqual(Child(share).result, "2")

    def test_a_child_runs_its_own_jobs_and_does_not_wait_for_its_parents(self) -> None:
        goes_on = threading.Event()
        jobs: Jobs[str] = Jobs("test", 1, self.report)
        self.addCleanup(jobs.close)
        self.addCleanup(goes_on.set)
        jobs.submit(1, lambda: str(goes_on.wait(PATIENCE_S)), "late")
        jobs.submit(2, lambda: "of the parent", "late")

        def work() -> object:
            jobs.submit(3, lambda: "of the child", "late")
            jobs.drain()
            done = jobs.take_done()
            jobs.close()
            return [(one.number, one.result) for one in done]

        self.assertEqual(Child(work).result, "[(3, 'of the child')]")

    def test_a_child_runs_its_own_look_ups(self) -> None:
        began, goes_on = threading.Event(), threading.Event()
        client = mock.Mock()

        def match(*_: object, **__: object) -> object:
            began.set()
            goes_on.wait(PATIENCE_S)
            raise LeaseLost("of no importance")

        client.match.side_effect = match
        lookups = Lookups(Finder(client, ["c"], None, self.report))

        def look_up() -> int:
            block = MatchedBlock("pinned", 0, 1, key(1))
            client.match = mock.Mock(return_value=Match(1, "l", 0, [block]))
            while (found := lookups.poll("three", [key(1)], 0)) is None:
                pass
            lookups.close()
            return found.matched

        with self.assertLogs("cairn.test"):
            lookups.poll("one", [key(1)], 0)
            lookups.poll("two", [key(1)], 0)
            began.wait(PATIENCE_S)
            self.assertEqual(Child(look_up).result, "1")
            self.assertEqual(Child(lookups.close).result, "None")
            goes_on.set()
            lookups.close()


if __name__ == "__main__":
    unittest.main()
