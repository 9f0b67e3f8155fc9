"""Calls that join a trace: within `traced`, and from an engine's request to each call made for it."""

from __future__ import annotations

import asyncio
import re
import time
import unittest
from unittest import mock

from cairn import AsyncClient, traced
from cairn.errors import CairnError, WrongArgument
from cairn.tracing import current_traceparent, traceparent_in
from fake_engine import Request
from server import PATIENCE_S, Server, key
from test_vllm import PROMPT, EngineCase

TRACES = [f"{number:032x}" for number in range(1, 4)]


def parent(trace: str) -> str:
    return f"00-{trace}-00f067aa0ba902b7-01"


class Traces(EngineCase):
    """A server that logs each request with its trace."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server("--log-level", "debug")
        cls.addClassCleanup(cls.server.close)

    def calls(self, trace: str, last: str) -> set[str]:
        """The last parts of the routes of this trace's requests, once `last` is among them."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            log = (self.server.folder / "log").read_text()
            found = {path.rsplit("/", 1)[-1] for path in re.findall(rf"route=(\S+) .*trace_id={trace}\b", log)}
            if last in found:
                return found
            self.assertLess(time.monotonic(), deadline, found)
            time.sleep(0.02)

    def test_calls_within_traced_carry_it_and_others_do_not(self) -> None:
        self.make()
        with traced(parent(TRACES[0])):
            self.client.has(self.name, key(1))
            with traced(None):
                self.client.evict(self.name, keys=[key(1)])
        self.client.blocks(self.name)
        self.assertEqual(self.calls(TRACES[0], "{key}"), {"{key}"})

    def test_tasks_carry_their_own(self) -> None:
        self.make()

        async def ask() -> None:
            async with AsyncClient(self.server.unix) as client:

                async def one(trace: str) -> None:
                    with traced(parent(trace)):
                        await asyncio.sleep(0)
                        await client.cache_info(self.name)

                await asyncio.gather(*map(one, TRACES[1:]))

        asyncio.run(ask())
        for trace in TRACES[1:]:
            self.assertEqual(self.calls(trace, "{cache}"), {"{cache}"})

    def test_an_engines_look_ups_loads_and_saves_carry_the_requests(self) -> None:
        first, again = (f"{number:032x}" for number in (11, 12))
        setup = self.setup_of(url=self.server.http)
        with mock.patch("cairn.engine.store.TierView", side_effect=CairnError("another host")):
            engine = self.engine(setup)
            engine.run(Request("first", list(PROMPT), trace_headers={"traceparent": parent(first)}))
            engine.close()
            self.assertEqual(self.calls(first, "write"), {"match", "write"})
            request = Request("again", list(PROMPT), trace_headers={"traceparent": parent(again)})
            self.engine(setup).run(request)
        self.assertEqual(request.loaded_tokens, 88)
        self.assertLessEqual({"match", "read"}, self.calls(again, "read"))


class Values(unittest.TestCase):
    def test_what_cannot_be_a_header_is_refused(self) -> None:
        for wrong in ("", "00-aa\r\nHost: x", "0" * 300):
            with self.assertRaises(WrongArgument), traced(wrong):
                pass
        self.assertIsNone(current_traceparent())

    def test_an_engines_headers_are_read_if_they_can_be_used(self) -> None:
        self.assertEqual(traceparent_in({"traceparent": parent(TRACES[0])}), parent(TRACES[0]))
        for headers in (None, {}, {"traceparent": 3}, {"traceparent": "a b"}, "traceparent"):
            self.assertIsNone(traceparent_in(headers))
