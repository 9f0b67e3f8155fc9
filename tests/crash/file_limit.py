#!/usr/bin/env python3
"""A limit on file sizes (RLIMIT_FSIZE) is an error, with its name, of the operation that reaches it, and does not
end the server.

usage: file_limit.py CAIRN_SERVER
"""

import pathlib
import resource
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ops"))

from ledger import BLOCK_BYTES, SHAPE  # noqa: E402
from storm import Line  # noqa: E402
from support import Folder, Server  # noqa: E402

LIMIT_BYTES = 2 << 20  # more than a small tier's log, less than the slot file below
BLOCKS = 256  # of 12 KiB with their headers: 3 MiB


def start_limited(program, folder):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, hard))
    try:
        return Server(program, folder, "--runtime", "host", "--threads", "1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def cache_of(blocks):
    return {"layout": SHAPE, "tiers": {"pinned": {"num_blocks": 4}, "disk": {"num_blocks": blocks}}}


def put(line, number):
    data = number.to_bytes(4, "little") * (BLOCK_BYTES // 4)
    return line.call("PUT", f"/v1/caches/grown/keys/{number:08x}?tier=disk", data)


def main():
    with Folder() as folder:
        server = Server(sys.argv[1], folder, "--runtime", "host", "--threads", "1")
        status, answer = server.call("PUT", "/v1/caches/grown", cache_of(BLOCKS))
        assert status == 201, answer
        assert server.stop() == 0, server.text()

        server = start_limited(sys.argv[1], folder)
        status, answer = server.call("PUT", "/v1/caches/too-large", cache_of(BLOCKS))
        assert (status, answer["code"]) == (507, "no_capacity"), answer
        line = Line(server.address)
        answers = [put(line, number) for number in range(BLOCKS)]
        kept = {number for number, (status, _) in enumerate(answers) if status == 201}
        refused = [answer for answer in answers if answer[0] != 201]
        # Slots are used in order: those below the limit store their blocks.
        assert 100 < len(kept) < BLOCKS and refused, len(kept)
        for status, answer in refused:
            assert (status, answer["code"]) == (507, "no_capacity"), answer
        for number in range(BLOCKS):
            status, data = line.call("GET", f"/v1/caches/grown/keys/{number:08x}")
            assert status == (200 if number in kept else 404), f"{status} for {number}"
            assert status == 404 or data == number.to_bytes(4, "little") * (BLOCK_BYTES // 4)
        assert server.stop() == 0, server.text()
    print(f"{len(kept)} blocks kept, {len(refused)} refused by name")


if __name__ == "__main__":
    main()
