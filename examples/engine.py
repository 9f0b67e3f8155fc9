#!/usr/bin/env python3
"""An example engine that keeps its KV blocks in Cairn without copying them over HTTP.

It maps a tier, reads existing blocks in place, computes the others directly into slots of the tier, and commits
them. What it "computes" is a pattern derived from the prompt, the same as engine.cpp's, so that every byte can be
checked. It needs only Python's standard library; with numpy it is fifty times as fast.

usage: engine.py SERVER CACHE FIRST_PROMPT PROMPTS BLOCKS
       SERVER: http://HOST:PORT, or unix:/PATH, which also works from another container
       CAIRN_TOKEN: the token, if the server requires one
"""

import array
import http.client
import json
import mmap
import os
import socket
import sys
import time
import urllib.parse

try:
    import numpy
except ImportError:
    numpy = None

TIER = "pinned"
LEASE_MS = 30_000
# Write nothing in place this close to the end of a lease: after it, the server may reuse the slot.
MARGIN_MS = 5_000
ALL_ONES = (1 << 64) - 1


class Refused(Exception):
    def __init__(self, status, body):
        super().__init__(f"{status}: {body[:300]}")
        self.status = status


class PassingSocket(socket.socket):
    """A Unix socket that keeps the open files received with the data."""

    def connect(self, path):
        self.files = []
        super().connect(path)

    def recv_into(self, buffer, nbytes=0, flags=0):
        room = memoryview(buffer)[:nbytes or None]
        # Room for 8 open files, the most that the server sends.
        size, control, _, _ = self.recvmsg_into([room], socket.CMSG_SPACE(8 * 4), flags)
        for level, kind, data in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files = array.array("i")
                files.frombytes(data[:len(data) - len(data) % files.itemsize])
                self.files += files
        return size


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = PassingSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Cairn:
    """A client with one persistent connection."""

    def __init__(self, url):
        address = urllib.parse.urlsplit(url)
        self.connection = (UnixConnection(address.path, timeout=60) if address.scheme == "unix"
                           else http.client.HTTPConnection(address.netloc, timeout=60))
        token = os.environ.get("CAIRN_TOKEN", "").strip()  # files and shells leave white space around it
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def call(self, method, path, body=None):
        headers = dict(self.headers)
        if body is not None:
            body = json.dumps(body)
            headers["Content-Type"] = "application/json"
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.status // 100 != 2:
            raise Refused(answer.status, data.decode(errors="replace"))
        return json.loads(data) if "json" in (answer.getheader("Content-Type") or "") else data

    def take_files(self):
        """The open files received with the last answer. The caller must close them."""
        files = getattr(self.connection.sock, "files", [])
        taken = list(files)
        files.clear()
        return taken


class MappedTier:
    """A mapped tier of a cache, from the answer of POST …/tiers/{tier}/export. Over a Unix socket the answer comes
    with an open file. Otherwise the file is opened by its path, which is valid only in the server's PID
    namespace."""

    def __init__(self, exported, layout, files):
        if exported["kind"] != "shm":
            raise RuntimeError(f"this engine maps only shared memory, not {exported['kind']}")
        by_path = "descriptor" not in exported
        if by_path:
            files = [os.open(exported["path"], os.O_RDWR | os.O_CLOEXEC)]
        try:
            file = files[0 if by_path else exported["descriptor"]]
            # After a restart, the server may have another file under the same path.
            if by_path and os.fstat(file).st_ino != exported["inode"]:
                raise RuntimeError(f"{exported['path']} is no longer the exported memory")
            self.memory = memoryview(mmap.mmap(file, exported["size_bytes"]))
        finally:
            for file in files:
                os.close(file)
        self.regions = [region["offset_bytes"] for region in exported["regions"]]
        self.strides = exported["strides"]
        self.slots = exported["regions"][0]["size_bytes"] // self.strides["block_bytes"]
        self.layers, self.outers = layout["num_layers"], layout["outer_dim"]
        self.piece_bytes = layout["page_size"] * layout["inner_dim"] * layout["dtype_width_bytes"]

    def pieces(self, slot):
        """A block's pieces in canonical order, [layer][outer], whatever the tier's layout."""
        for layer in range(self.layers):
            # If each layer has its own region, `layer_bytes` is 0.
            region = self.regions[layer if len(self.regions) > 1 else 0]
            for outer in range(self.outers):
                begin = (region + slot * self.strides["block_bytes"] + layer * self.strides["layer_bytes"]
                         + outer * self.strides["outer_bytes"])
                yield self.memory[begin:begin + self.piece_bytes]


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & ALL_ONES
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & ALL_ONES
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & ALL_ONES
    return x ^ (x >> 31)


def words(prompt, index, first, count):
    """A range of a block's 64-bit words in canonical order, as bytes."""
    seed = mix((prompt << 20) + index) + first
    if numpy is None:
        values = array.array("Q", (mix((seed + i) & ALL_ONES) for i in range(count)))
        if sys.byteorder != "little":
            values.byteswap()
        return values.tobytes()
    x = numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(seed & ALL_ONES)
    x += numpy.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return (x ^ (x >> numpy.uint64(31))).astype("<u8").tobytes()


class Engine:
    def __init__(self, cairn, cache):
        self.cairn = cairn
        self.path = f"/v1/caches/{cache}"
        self.layout = cairn.call("GET", self.path)["layout"]
        self.tier = self.mapped()
        if self.tier.piece_bytes % 8:
            raise RuntimeError("this engine computes eight bytes at a time; a piece must be a multiple of that")
        self.tally = dict.fromkeys(["read_in_place", "read_over_http", "written", "duplicates", "wrong_bytes"], 0)

    def mapped(self):
        exported = self.cairn.call("POST", f"{self.path}/tiers/{TIER}/export")
        return MappedTier(exported, self.layout, self.cairn.take_files())

    def pieces(self, slot):
        if slot >= self.tier.slots:  # the tier has grown
            self.tier = self.mapped()
        return self.tier.pieces(slot)

    def serve(self, prompt, blocks):
        # A real engine uses a hash of all tokens up to the block's end.
        keys = [f"{prompt:016x}{index:016x}" for index in range(blocks)]
        held = None
        while held is None:
            held = self.read_prefix(prompt, keys)
        if held < blocks:
            self.compute_rest(prompt, keys, held)

    def read_prefix(self, prompt, keys):
        """Returns how many blocks of the prompt exist and were read; None if the lease ended in the meantime,
        because the bytes read may then have been any."""
        match = self.cairn.call("POST", f"{self.path}/match", {"keys": keys, "lease_ms": LEASE_MS})
        if match["matched"] == 0:
            return 0
        read = dict.fromkeys(self.tally, 0)
        for index, block in enumerate(match["blocks"]):
            if block["tier"] == TIER:
                # An attention kernel would read the pieces here.
                read["wrong_bytes"] += self.wrong_bytes(prompt, index, self.pieces(block["slot"]))
                read["read_in_place"] += 1
            else:
                data = self.cairn.call("GET", f"{self.path}/keys/{block['key']}")
                read["wrong_bytes"] += self.wrong_bytes(prompt, index, [data])
                read["read_over_http"] += 1
        try:
            self.cairn.call("DELETE", f"/v1/leases/{match['lease']}")
        except Refused:
            return None
        for name, count in read.items():
            self.tally[name] += count
        return match["matched"]

    def compute_rest(self, prompt, keys, first):
        slots = self.cairn.call("POST", f"{self.path}/allocate",
                                {"count": len(keys) - first, "tier": TIER, "lease_ms": LEASE_MS})
        expires_at_ms = slots["expires_at_ms"]
        blocks = []
        for index, handle in enumerate(slots["blocks"], first):
            if expires_at_ms - time.time() * 1000 < MARGIN_MS:
                renewed = self.cairn.call("POST", f"/v1/leases/{slots['lease']}/renew", {"lease_ms": LEASE_MS})
                expires_at_ms = renewed["expires_at_ms"]
            number = 0
            for piece in self.pieces(handle["slot"]):
                piece[:] = words(prompt, index, number, len(piece) // 8)
                number += len(piece) // 8
            parent = {"parent": keys[index - 1]} if index else {}
            blocks.append({**handle, "key": keys[index], **parent})
        answer = self.cairn.call("POST", f"{self.path}/commit", {"lease": slots["lease"], "blocks": blocks})
        for block in answer["blocks"]:
            self.tally["written" if block["status"] == "committed" else "duplicates"] += 1
        try:
            self.cairn.call("DELETE", f"/v1/leases/{slots['lease']}")
        except Refused:
            pass  # it has ended already; committed blocks stay

    def wrong_bytes(self, prompt, index, pieces):
        wrong = number = 0
        for piece in pieces:
            if piece != words(prompt, index, number, len(piece) // 8):
                wrong += len(piece)
            number += len(piece) // 8
        return wrong


def main():
    if len(sys.argv) != 6:
        sys.exit(__doc__[__doc__.index("usage:"):].strip())
    server, cache = sys.argv[1:3]
    first, prompts, blocks = map(int, sys.argv[3:])
    engine = Engine(Cairn(server), cache)
    for prompt in range(first, first + prompts):
        engine.serve(prompt, blocks)
    print(json.dumps(engine.tally))
    sys.exit(0 if engine.tally["wrong_bytes"] == 0 else 1)


if __name__ == "__main__":
    main()
