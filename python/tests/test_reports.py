"""A connector's counters and log lines."""

from __future__ import annotations

import logging
import unittest

from cairn.engine.report import Report


class Reports(unittest.TestCase):
    def test_a_line_is_not_repeated_at_once(self) -> None:
        now = [0.0]
        report = Report(logging.getLogger("cairn.test.report"), lambda: now[0])
        with self.assertLogs("cairn.test.report") as logs:
            for second in range(25):
                now[0] = float(second)
                report.warn("the server does not answer at all, not even once")
        self.assertEqual(len(logs.output), 3)

    def test_the_number_of_remembered_lines_is_bounded(self) -> None:
        report = Report(logging.getLogger("cairn.test.report"), lambda: 0.0)
        with self.assertLogs("cairn.test.report"):
            for number in range(1000):
                report.warn(f"{number} keys")
        self.assertLessEqual(len(report._logged_at), 256)

    def test_counts_are_taken_once(self) -> None:
        report = Report(logging.getLogger("cairn.test.report"))
        report.count("a", 2)
        report.count("a")
        self.assertEqual((report.take(), report.take()), ({"a": 3}, {}))


if __name__ == "__main__":
    unittest.main()
