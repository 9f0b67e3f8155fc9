#!/usr/bin/env python3
"""If the system refuses more threads (pids.max of a container, RLIMIT_NPROC), the error names it: a start exits
with 1 and the reason; a running server refuses the snapshot, continues and exits cleanly.

usage: thread_limit.py CAIRN_SERVER FAULTS_LIBRARY
"""

import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ops"))

from ledger import SHAPE  # noqa: E402
from support import PATIENCE_S, Folder, Server  # noqa: E402

CACHE = {"layout": SHAPE, "tiers": {"pinned": {"num_blocks": 8}, "disk": {"num_blocks": 8}}}
FLAGS = ("--runtime", "host", "--threads", "2")


def environment(library, first_refused):
    return {**os.environ, "LD_PRELOAD": library, "CAIRN_FAULTS_THREAD": str(first_refused),
            "ASAN_OPTIONS": "verify_asan_link_order=0"}


def start_without(program, library, folder, first_refused):
    """Returns None if the server started; otherwise its output, which must name the missing thread."""
    command = [program, "--listen", "127.0.0.1:0", "--data-dir", folder / "data", *FLAGS, "--config",
               folder / "config.json"]
    child = subprocess.Popen([str(word) for word in command], env=environment(library, first_refused),
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = ""
    for line in child.stdout:
        said += line
        if "listening on" in line:
            child.terminate()
            child.stdout.read()
            assert child.wait(PATIENCE_S) == 0, said
            return None
    code = child.wait(PATIENCE_S)
    assert code in (1, 2), f"thread {first_refused} was refused: the server ended with {code}:\n{said}"
    assert "there is no thread for '" in said, said
    return said


def main():
    program, library = sys.argv[1], sys.argv[2]
    with Folder() as folder:
        (folder / "config.json").write_text(json.dumps({"caches": []}))
        refused = 0
        while start_without(program, library, folder, refused + 1):
            refused += 1
            assert refused < 200, "a start needs too many threads"
        assert refused >= 8, f"only {refused} threads were refused: the library was not loaded"

        # Allows as many threads as a start needs, and no more.
        server = Server(program, folder, *FLAGS, "--config", folder / "config.json",
                        env=environment(library, refused + 1))
        status, answer = server.call("PUT", "/v1/caches/small", CACHE)
        assert status == 201, answer
        for _ in range(3):
            status, answer = server.call("POST", "/v1/caches/small/snapshots", {"name": "one"})
            assert (status, answer["code"]) == (503, "unavailable"), answer
            assert "no thread" in answer["detail"], answer
        status, answer = server.call("POST", "/v1/groups", {"name": "g", "rank": 0, "world_size": 2, "device_id": 0})
        assert (status, answer["code"]) == (503, "unavailable"), answer
        assert server.call("GET", "/v1/groups")[1]["groups"] == []
        assert server.call("GET", "/healthz")[0] == 200
        assert server.stop() == 0, server.text()
    print(f"{refused} starts without a thread were refused by name")


if __name__ == "__main__":
    main()
