"""`python -m cairn`, run as users run it."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from typing import Any

from cairn.__main__ import arguments
from cairn._base import ClientBase, Verb
from cairn.command import NOT_HERE
from server import ROOT, ServerCase, block, key


def run(*words: str, data: bytes = b"", path: str | None = None) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python" / "src")}
    if path is not None:
        environment["PATH"] = path
    command = [sys.executable, "-B", "-m", "cairn", *words]
    return subprocess.run(command, capture_output=True, env=environment, input=data)


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

    def test_a_wrong_word_is_answered_with_the_nearest(self) -> None:
        self.assertIn(b"there is no command 'statu'; did you mean 'status'?", run("statu").stderr)
        self.assertIn(b"there is no command 'qqqq'; `cairn --help` lists them", run("qqqq").stderr)

    def test_events_are_lines_until_the_command_is_ended(self) -> None:
        self.make()
        self.client.put(self.name, key(1), block(1))
        server = ("--server", self.server.unix)
        ended = run(*server, "events", "--cache", self.name, "--after", "0", "--silence-s", "0.2")
        stored = [event for event in map(json.loads, ended.stdout.splitlines()) if event["event"] == "stored"]
        self.assertEqual([event["keys"] for event in stored], [[key(1).hex()]])
        self.assertEqual(ended.returncode, 3, ended.stderr)  # it was silent

    def test_every_call_is_a_command(self) -> None:
        parser = arguments()
        for name, verb in vars(ClientBase).items():
            if isinstance(verb, Verb) and name not in NOT_HERE:
                shown = io.StringIO()
                with self.assertRaises(SystemExit) as ended, contextlib.redirect_stdout(shown):
                    parser.parse_args([name.replace("_", "-"), "--help"])
                self.assertEqual(ended.exception.code, 0, name)
                self.assertIn(f"usage: cairn {name.replace('_', '-')}", shown.getvalue())

    def test_a_block_goes_its_whole_way_by_commands(self) -> None:
        self.make()

        def ask(*words: str, data: bytes = b"") -> Any:
            done = run("--server", self.server.unix, *words, data=data)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout) if done.stdout else None

        put = ask("put", self.name, "aa", "-", "--priority", "70", "--metadata", '{"of": "a test"}', data=block(1))
        self.assertEqual(put["status"], "committed")
        self.assertEqual(ask("metadata", self.name, "aa"), {"of": "a test"})
        self.assertEqual(ask("has", self.name, "aa"), True)
        pinned = ask("actions", self.name, '[{"type": "pin", "keys": ["aa"], "ttl_ms": 60000}]')
        self.assertEqual([result["outcome"] for result in pinned], ["accepted"])
        self.assertEqual(ask("blocks", self.name, "--limit", "1")["blocks"][0]["key"], "aa")
        self.assertEqual(ask("evict", self.name, "aa", "bb")["evicted"], 0)
        found = run("--server", self.server.unix, "match", self.name, "aa", "--lease-ms", "60000").stdout.decode()
        self.assertEqual(ask("release", found.split("lease ")[1].strip()), 1)
        self.assertIsNone(ask("delete", self.name, "aa", data=b""))

    def test_what_a_command_cannot_read_is_an_error_by_name(self) -> None:
        self.make()
        for words, said in (
            (("put", self.name, "aa", "/no/such/file"), "/no/such/file: No such file or directory"),
            (("actions", self.name, "[{]"), "argument ACTIONS: no JSON"),
            (("actions", self.name, '[{"type": "pine"}]'), "it.type is 'pine', not one of pin, unpin, retain"),
            (("actions", self.name, "@/no/such"), "/no/such: No such file or directory"),
            (("make-cache", self.name, '{"tiers": 3}'), "argument CONFIG: it.tiers is '3', not a dict"),
            (("hint", self.name, "tomorrow"), "argument REUSE: "),
            (("put", self.name, "aa", "-", "--tier", "tape"), "invalid choice: 'tape'"),
            (("renew", "0", "long"), "invalid int value: 'long'"),
        ):
            done = run("--server", self.server.unix, *words)
            self.assertIn(done.returncode, (1, 2), words)
            self.assertIn(said, done.stderr.decode())
            self.assertNotIn("Traceback", done.stderr.decode())

    def test_a_command_becomes_a_program(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "cairnctl"
            program.write_text('#!/bin/sh\necho "$0 $@"; exit 5\n')
            program.chmod(0o755)
            done = run("ctl", "--server", "x", "status", path=folder)
            self.assertEqual((done.returncode, done.stdout.decode()), (5, f"{program} --server x status\n"))
            after_ours = run("--timeout", "3", "ctl", "status", path=folder)
            self.assertEqual((after_ours.returncode, after_ours.stdout.decode()), (5, f"{program} status\n"))
            missing = run("serve", path=folder)
            self.assertEqual(missing.returncode, 127)
            self.assertIn(b"there is no cairn-server here", missing.stderr)


if __name__ == "__main__":
    unittest.main()
