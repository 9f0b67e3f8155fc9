"""A server that is silent, busy or gone, as an engine meets it."""

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
    def test_a_silent_server_is_asked_less_and_less_and_one_answer_ends_it(self) -> None:
        now = [100.0]
        breaker = Breaker(lambda: now[0])
        self.assertTrue(breaker.may_ask())
        self.assertTrue(breaker.silent())
        pauses = []
        for _ in range(8):
            began = now[0]
            while not breaker.may_ask():
                now[0] += 0.25
            self.assertFalse(breaker.may_ask())  # the others wait for this one's answer
            self.assertFalse(breaker.silent())
            pauses.append(now[0] - began)
        self.assertEqual(pauses, sorted(pauses))
        self.assertEqual(pauses[-1], LONGEST_PAUSE_S)
        self.assertTrue(breaker.answered())
        self.assertFalse(breaker.answered())
        self.assertTrue(breaker.may_ask())


class Accesses(unittest.TestCase):
    def test_a_server_that_is_not_there_at_the_start_is_found_later(self) -> None:
        answers: list[Exception | None] = [NoAnswer("gone"), None]
        store = FakeStore()

        def open_store() -> Store:
            if (error := answers.pop(0)) is not None:
                raise error
            return store

        access = Access(open_store, Report(logging.getLogger("cairn.test")))
        access.open()
        with self.assertRaises(NoAnswer):  # it is not asked again at once
            access.use(lambda opened: None)
        access._breaker.answered()  # as if its pause were over
        self.assertIs(access.use(lambda opened: opened), store)

    def test_a_server_that_starts_or_is_busy_refuses_no_engine(self) -> None:
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
                self.assertEqual(access.is_silent, status != 429)  # one that is busy is asked for other things
                access._breaker.answered()
                self.assertIs(access.use(lambda opened: opened), store)

    def test_what_a_server_refuses_for_good_is_known_at_the_start(self) -> None:
        def refused() -> Store:
            raise Refused(403, "forbidden", "the token may not write")

        with self.assertRaises(Refused):
            Access(refused, Report(logging.getLogger("cairn.test"))).open()


class Finders(unittest.TestCase):
    def test_a_server_that_starts_is_not_asked_by_every_request(self) -> None:
        client = mock.Mock()
        client.match.side_effect = Refused(503, "unavailable", "the server is starting")
        finder = Finder(client, ["c"], "pinned", Report(logging.getLogger("cairn.test")))
        for _ in range(5):
            self.assertEqual(finder.find([b"k"], 0).blocks, 0)
        self.assertEqual(client.match.call_count, 1)
        self.assertTrue(finder.is_silent)


if __name__ == "__main__":
    unittest.main()
