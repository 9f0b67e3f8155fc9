"""How an engine handles a server that is silent, busy or gone."""

from __future__ import annotations

import logging
import unittest
from typing import Any, cast
from unittest import mock

from cairn.engine.access import LONGEST_PAUSE_S, Access, Breaker
from cairn.engine.lookup import Finder
from cairn.engine.report import Report
from cairn.engine.store import Store
from cairn.errors import NoAnswer, Refused
from fake_store import FakeStore


class Breakers(unittest.TestCase):
    def test_pauses_grow_while_the_server_is_silent_and_end_with_an_answer(self) -> None:
        now = [100.0]
        breaker = Breaker(lambda: now[0])
        self.assertTrue(breaker.may_ask())
        self.assertTrue(breaker.silent())
        pauses = []
        for _ in range(8):
            began = now[0]
            while not breaker.may_ask():
                now[0] += 0.25
            self.assertFalse(breaker.may_ask())  # other callers wait for the answer to this request
            self.assertFalse(breaker.silent())
            pauses.append(now[0] - began)
        self.assertEqual(pauses, sorted(pauses))
        self.assertEqual(pauses[-1], LONGEST_PAUSE_S)
        self.assertTrue(breaker.answered())
        self.assertFalse(breaker.answered())
        self.assertTrue(breaker.may_ask())


class Accesses(unittest.TestCase):
    def test_a_server_that_starts_after_the_engine_is_found(self) -> None:
        answers: list[Exception | None] = [NoAnswer("gone"), None]
        store = FakeStore()

        def open_store() -> Store:
            if (error := answers.pop(0)) is not None:
                raise error
            return store

        access = Access(open_store, Report(logging.getLogger("cairn.test")))
        access.open()
        with self.assertRaises(NoAnswer):  # the server is not asked again at once
            access.use(lambda opened: None)
        access._breaker.answered()  # ends the pause
        self.assertIs(access.use(lambda opened: opened), store)

    def test_an_engine_starts_although_the_server_is_starting_or_busy(self) -> None:
        for status in (429, 502, 503, 504):
            with self.subTest(status=status):
                answers: list[Exception | None] = [Refused(status, "unavailable", "the server is starting"), None]
                store = FakeStore()

                def open_store(answers: Any = answers, store: Any = store) -> Store:
                    if (error := answers.pop(0)) is not None:
                        raise error
                    return cast(Store, store)

                access = Access(open_store, Report(logging.getLogger("cairn.test")))
                access.open()
                self.assertEqual(access.is_silent, status != 429)  # a busy server still gets other requests
                access._breaker.answered()
                self.assertIs(access.use(lambda opened: opened), store)

    def test_a_final_refusal_fails_the_engines_start(self) -> None:
        def refused() -> Store:
            raise Refused(403, "forbidden", "the token may not write")

        with self.assertRaises(Refused):
            Access(refused, Report(logging.getLogger("cairn.test"))).open()


class Finders(unittest.TestCase):
    def test_look_ups_pause_while_the_server_starts(self) -> None:
        client = mock.Mock()
        client.match.side_effect = Refused(503, "unavailable", "the server is starting")
        finder = Finder(client, ["c"], "pinned", Report(logging.getLogger("cairn.test")))
        for _ in range(5):
            self.assertEqual(finder.find([b"k"], 0).blocks, 0)
        self.assertEqual(client.match.call_count, 1)
        self.assertTrue(finder.is_silent)


if __name__ == "__main__":
    unittest.main()
