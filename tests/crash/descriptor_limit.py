#!/usr/bin/env python3
"""A limit on open files (RLIMIT_NOFILE) is reported with its name: to connections, to a cache that gets no file,
and in the log if no connection can be accepted. Once files are closed again, everything works as before.

usage: descriptor_limit.py CAIRN_SERVER
"""

import http.client
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ops"))

from ledger import BLOCK_BYTES, SHAPE  # noqa: E402
from support import Folder, Server, eventually  # noqa: E402

FILES = 96
CONNECTIONS = FILES // 2  # with so few files, half of them are reserved for caches
CACHE = {"layout": SHAPE, "tiers": {"pinned": {"num_blocks": 4}, "disk": {"num_blocks": 16}}}


def limited(program, folder):
    """Sets the hard limit too, because the server raises the soft one."""
    script = folder / "limited"
    script.write_text(f'#!/bin/sh\nulimit -n {FILES}\nexec "{pathlib.Path(program).resolve()}" "$@"\n')
    script.chmod(0o755)
    return script


class Line:
    """A persistent connection. An answer is None if the server has closed it."""

    def __init__(self, address):
        self.connection = http.client.HTTPConnection(address, timeout=20)
        self.connection.connect()

    def ask(self):
        try:
            self.connection.request("GET", "/healthz")
            answer = self.connection.getresponse()
            answer.read()
            return answer.status
        except ConnectionError:
            return None

    def close(self):
        self.connection.close()


def make_caches(server):
    """Makes caches until no file is left for one. Returns how many there are, and the refusal."""
    for number in range(FILES):
        status, answer = server.call("PUT", f"/v1/caches/c{number}", CACHE)
        if status != 201:
            return number, status, answer
    raise AssertionError("the limit was never reached: every cache got its files")


def use_and_drop(server, number):
    block = bytes([number]) * BLOCK_BYTES
    assert server.call("PUT", f"/v1/caches/c{number}/keys/aa?tier=disk", block)[0] == 201
    assert server.call("GET", f"/v1/caches/c{number}/keys/aa") == (200, block)
    assert server.call("DELETE", f"/v1/caches/c{number}")[0] == 204


def open_files(server):
    return len(list(pathlib.Path(f"/proc/{server.child.pid}/fd").iterdir()))


def idle_files(server):
    """Without the file of a connection that is being closed."""
    eventually(lambda: connections(server) == 1, "the connections to be closed")
    time.sleep(0.1)
    return open_files(server)


def connections(server):
    text = server.call("GET", "/metrics")[1].decode()
    return next(float(row.split()[-1]) for row in text.splitlines() if row.startswith("cairn_http_connections "))


def main():
    with Folder() as folder:
        server = Server(limited(sys.argv[1], folder), folder, "--runtime", "host", "--threads", "1")
        server.call("PUT", "/v1/caches/c0", CACHE)
        use_and_drop(server, 0)  # creates the buffers for blocks, which stay
        fresh = idle_files(server)

        # Beyond the allowed number, idle connections make room, or new ones are refused.
        lines = [Line(server.address) for _ in range(CONNECTIONS + 10)]
        answers = [line.ask() for line in lines]
        assert answers.count(200) >= CONNECTIONS and set(answers) <= {200, 503, None}, answers
        for line in lines:
            line.close()
        eventually(lambda: connections(server) == 1, "the connections to be closed")

        # Caches too; the files of a refused cache are removed.
        made, status, answer = make_caches(server)
        assert made > 3 and answer["code"] in ("no_capacity", "io_error"), (made, status, answer)
        assert "open files" in answer["detail"], answer
        before = idle_files(server)
        again = server.call("PUT", f"/v1/caches/c{made}", CACHE)
        assert (again[0], again[1]["code"]) == (status, answer["code"]), again
        eventually(lambda: open_files(server) == before, "the files of the cache that was refused to be closed")

        # Without a file for it, a connection waits in the kernel until there is one.
        lines = [Line(server.address) for _ in range(FILES - before + 5)]
        eventually(lambda: "cannot accept a connection" in server.text(), "the log to say so")
        for line in lines[:-1]:
            line.close()
        assert lines[-1].ask() == 200
        lines[-1].close()

        for number in range(made):
            use_and_drop(server, number)
        eventually(lambda: open_files(server) == fresh, f"{fresh} open files, as at the start")
        assert server.stop() == 0, server.text()
    print(f"{CONNECTIONS} connections, then {made} caches with {FILES} open files; the refusal: {status} {answer['code']}")


if __name__ == "__main__":
    main()
