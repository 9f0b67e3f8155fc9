"""If the last part of `.ci/run` cannot run, it prints a reason and does not fail."""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest

from server import PATIENCE_S, ROOT

ENGINES = ROOT / "python" / "tests" / "engines"


class LeftOut(unittest.TestCase):
    def run_it(self, script: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [str(ENGINES / script), *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def test_engines_are_skipped_after_a_long_run(self) -> None:
        code, out, errors = self.run_it("short.sh", "3601")
        self.assertEqual((code, out), (77, ""))
        self.assertEqual(
            errors, "The engines' tests are left out: the run began 60 minutes ago, and they begin within 53.\n"
        )

    def test_engines_that_cannot_be_installed_are_skipped_with_a_reason(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            code, out, errors = self.run_it("environment.sh", folder, CAIRN_PYTHON="/nowhere/python3")
            self.assertEqual((code, out, errors), (77, "", "skipped: the engines need Python 3.10 to 3.12\n"))


if __name__ == "__main__":
    unittest.main()
