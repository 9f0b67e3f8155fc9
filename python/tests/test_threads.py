"""Copies by two threads, and jobs that always end."""

from __future__ import annotations

import logging
import os
import threading
import time
import unittest
from typing import Any

from cairn.engine.copy_helper import SHARED_BYTES, CopyHelper
from cairn.engine.jobs import Jobs
from cairn.engine.report import Report
from server import PATIENCE_S


class Helpers(unittest.TestCase):
    def setUp(self) -> None:
        self.helper = CopyHelper()
        self.addCleanup(self.helper.close)
        self.by_part: dict[int, str] = {}

    def copy(self, part: int) -> None:
        assert part not in self.by_part
        self.by_part[part] = threading.current_thread().name

    def test_two_threads_share_a_large_copy(self) -> None:
        both = threading.Barrier(2)  # passes if two parts are copied at once

        def copy(part: int) -> None:
            self.copy(part)
            if part < 2:
                both.wait(PATIENCE_S)

        self.helper.share(copy, 5, SHARED_BYTES)
        self.assertEqual(sorted(self.by_part), [0, 1, 2, 3, 4])
        self.assertEqual(len(set(self.by_part.values())), 2)

    @unittest.skipUnless(hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1, "one core")
    def test_the_other_thread_is_on_another_core(self) -> None:
        """If an engine that waits in a busy loop leaves no core idle, the kernel wakes the thread on the caller's
        core, where the two would take turns."""
        for _ in range(2):  # the thread exists by the second
            both = threading.Barrier(2)
            cores: dict[str, set[int]] = {}

            def copy(part: int, both: Any = both, cores: Any = cores) -> None:
                cores[threading.current_thread().name] = os.sched_getaffinity(0)
                both.wait(PATIENCE_S)

            self.helper.share(copy, 2, SHARED_BYTES)
        mine, others = cores.pop(threading.current_thread().name), cores.popitem()[1]
        self.assertEqual(len(mine - others), 1)
        self.assertLess(others, mine)

    def test_one_thread_makes_a_small_copy(self) -> None:
        self.helper.share(self.copy, 5, SHARED_BYTES - 1)
        self.assertEqual(self.by_part, dict.fromkeys(range(5), threading.current_thread().name))

    def test_a_copy_does_not_wait_for_a_busy_helper(self) -> None:
        goes_on = threading.Event()
        self.helper._thread.submit(goes_on.wait, PATIENCE_S)
        self.helper.share(self.copy, 4, SHARED_BYTES)
        self.assertEqual(self.by_part, dict.fromkeys(range(4), threading.current_thread().name))
        goes_on.set()

    def test_if_one_thread_fails_the_other_has_ended_too(self) -> None:
        for bad in (0, 1):
            both = threading.Barrier(2)
            ended: list[int] = []

            def copy(part: int, bad: int = bad, both: Any = both, ended: Any = ended) -> None:
                both.wait(PATIENCE_S)
                if part == bad:
                    raise ValueError("no such block")
                time.sleep(0.02)  # so that the other thread is first
                ended.append(part)

            with self.assertRaisesRegex(ValueError, "no such block"):
                self.helper.share(copy, 2, SHARED_BYTES)
            self.assertEqual(ended, [1 - bad])


class ManyJobs(unittest.TestCase):
    def test_a_job_that_raises_ends_with_its_fallback(self) -> None:
        notified = threading.Event()
        jobs: Jobs[int] = Jobs("test", 1, Report(logging.getLogger("cairn.test")), notified.set)

        def fails() -> int:
            raise RuntimeError("a bug")

        with self.assertLogs("cairn.test", "ERROR"):
            jobs.submit(7, fails, -1)
            self.assertTrue(notified.wait(PATIENCE_S))
        self.assertEqual(jobs.take(7), -1)
        jobs.do(fails)
        jobs.close()


if __name__ == "__main__":
    unittest.main()
