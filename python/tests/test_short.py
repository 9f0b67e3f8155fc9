"""The last part of `.ci/run`, where it cannot run: a sentence, and nothing that fails."""

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

    def test_a_run_that_took_long_leaves_the_engines_out(self) -> None:
        code, out, said = self.run_it("short.sh", "3601")
        self.assertEqual((code, out), (77, ""))
        self.assertEqual(
            said, "The engines' tests are left out: the run began 60 minutes ago, and they begin within 60.\n"
        )

    def test_engines_that_cannot_be_had_are_a_sentence(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            code, out, said = self.run_it("environment.sh", folder, CAIRN_PYTHON="/nowhere/python3")
            self.assertEqual((code, out, said), (77, "", "skipped: the engines need Python 3.10 to 3.12\n"))


if __name__ == "__main__":
    unittest.main()
