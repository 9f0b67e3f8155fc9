"""`python -m cairn`, run as users run it."""

import os
import subprocess
import sys
import unittest

from server import ROOT, ServerCase, block, key


def run(*words: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python" / "src")}
    return subprocess.run([sys.executable, "-B", "-m", "cairn", *words], capture_output=True, env=environment)


class Tool(ServerCase):
    def test_it_runs_status_match_and_get(self) -> None:
        self.make(disk=8)
        self.client.put(self.name, key(1), block(1))
        server = ("--server", self.server.unix)
        status = run(*server, "status")
        self.assertEqual(status.returncode, 0, status.stderr)
        self.assertIn(f"{self.name}: blocks of 256 bytes\n  pinned: 16 blocks, 1 in use", status.stdout.decode())
        match = run(*server, "match", self.name, key(1).hex(), key(2).hex())
        self.assertTrue(match.stdout.decode().startswith(f"1 of 2\n{key(1).hex()} pinned "), match.stdout)
        self.assertEqual(run(*server, "get", self.name, key(1).hex()).stdout, block(1))

    def test_exit_codes_tell_errors_apart(self) -> None:
        refused = run("--server", self.server.unix, "get", self.name, "aa")
        self.assertEqual(refused.returncode, 1)
        self.assertIn(b"unknown_cache", refused.stderr)
        self.assertEqual(run("--server", "unix:/nowhere", "status").returncode, 3)
        self.assertEqual(run("shout").returncode, 2)
        self.assertEqual(run("--help").returncode, 0)


if __name__ == "__main__":
    unittest.main()
