#!/usr/bin/env python3
"""Four servers of one group share a replayed trace: each block is computed once and read on all servers, and every
byte is compared. Servers are killed in the middle of broadcasts: the others report it with the right code and keep
serving, and a new server replaces the lost one and gets the blocks that the group holds.

Each request goes to the next server. It reads the blocks that its match found, computes the others (here: derives
them from the block's id), and broadcasts those. Exits 1 if a block was computed twice, did not arrive, or has a
wrong byte. Without --trace the requests are generated: sessions that grow turn by turn.

usage: share.py CAIRN_SERVER [--trace FILE] [--limit N] [--kills N] [--large-blocks N] [--seed N]
"""

import argparse
import functools
import hashlib
import http.client
import json
import random
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from support import PATIENCE_S, Folder, Server

RANKS = 4
SHAPE = {"num_layers": 4, "outer_dim": 2, "page_size": 16, "inner_dim": 64, "dtype_width_bytes": 2}
BLOCK_BYTES = 4 * 2 * 16 * 64 * 2
# Blocks of 512 KiB, so that a broadcast of many lasts long enough to be interrupted in the middle.
LARGE_SHAPE = {"num_layers": 8, "outer_dim": 2, "page_size": 16, "inner_dim": 1024, "dtype_width_bytes": 2}
LARGE_BYTES = 8 * 2 * 16 * 1024 * 2
# A different layout for each rank: broadcasts convert blocks.
LAYOUTS = [{"layout": "fully_contiguous"}, {"layout": "layer_separate", "block_dim": "first"},
           {"layout": "layer_separate", "block_dim": "second"}, {"layout": "fully_contiguous"}]
# (root, killed rank): one in the middle of the broadcast's chain, the root itself, and the chain's end.
LOSSES = [(0, 1), (2, 2), (1, 0)]
KEYS_A_CALL = 512
IN_FLIGHT_BLOCKS = 4 * 16  # four pieces of 8 MiB, the capacity of four servers' sockets and buffers
STOPS = 200  # attempts to stop a server in the middle of a broadcast
SAMPLE = 64  # blocks to read on the remaining servers right after a loss


def key(number):
    return hashlib.sha256(b"block %d" % number).hexdigest()


@functools.lru_cache(maxsize=4 * KEYS_A_CALL)
def block(number):
    return hashlib.shake_128(b"bytes %d" % number).digest(BLOCK_BYTES)


def large_key(loss, number):
    return hashlib.sha256(b"large %d %d" % (loss, number)).hexdigest()


def large_block(loss, number):
    # All pieces of 512 bytes differ, within a block and between blocks.
    return b"".join(hashlib.sha256(b"%d %d %d" % (loss, number, i)).digest() * 16 for i in range(LARGE_BYTES // 512))


def chunks(values, size=KEYS_A_CALL):
    return [values[i:i + size] for i in range(0, len(values), size)]


class Peer(Server):
    """A rank's server, on a persistent connection."""

    def __init__(self, program, folder):
        folder.mkdir()
        (folder / "config.json").write_text('{"caches": []}')
        super().__init__(program, folder, "--runtime", "host", "--config", folder / "config.json")
        self.connection = http.client.HTTPConnection(self.address, timeout=2 * PATIENCE_S)

    def ask(self, method, path, body=None, good=(200, 201, 202, 204)):
        raw = isinstance(body, bytes)
        self.connection.request(method, path, body if raw or body is None else json.dumps(body),
                                {"Content-Type": "application/octet-stream" if raw else "application/json"})
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.status not in good:
            raise AssertionError(f"{method} {path}: {answer.status} {data[:300]!r}")
        return json.loads(data) if "json" in (answer.getheader("Content-Type") or "") else data

    def transfer(self, transfer, wait_ms=0):
        return self.ask("GET", f"/v1/transfers/{transfer}?wait_ms={wait_ms}")

    def ended(self, transfer):
        while transfer["state"] in ("queued", "running"):
            transfer = self.transfer(transfer["transfer"], 10_000)
        return transfer

    def wrong_of(self, numbers):
        """The number of these blocks that are missing here or differ."""
        data = self.ask("POST", "/v1/caches/c/read", {"keys": [key(n) for n in numbers]})
        return sum(data[i * BLOCK_BYTES:(i + 1) * BLOCK_BYTES] != block(n) for i, n in enumerate(numbers))

    def writes(self):
        """The server's counts: (new blocks written here, blocks written here that existed)."""
        text = self.ask("GET", "/metrics").decode()
        counts = {code: int(float(value)) for code, value in re.findall(
            r'cairn_http_requests_total\{route="[^"]*/keys/\{key\}",method="PUT",code="(\d+)"\} (\S+)', text)}
        return counts.get("201", 0), sum(counts.values()) - counts.get("201", 0)


class Sharing:
    def __init__(self, program, folder, num_blocks):
        self.program, self.folder, self.num_blocks = program, folder, num_blocks
        self.everyone = ThreadPoolExecutor(RANKS)
        self.started = 0
        self.groups = 0
        self.computed = {}  # block -> how often it was computed
        self.large_writes = 0
        self.lost_writes = (0, 0)  # counts of the killed servers
        self.counts = {"read_by_requests": 0, "wrong_or_missing": 0, "shared_bytes": 0}
        self.losses = []
        self.peers = [self.start(rank) for rank in range(RANKS)]
        self.form()

    def start(self, rank):
        peer = Peer(self.program, self.folder / str(self.started))
        self.started += 1
        peer.ask("PUT", "/v1/caches/c", {"layout": SHAPE, "tiers": {
            "pinned": {"num_blocks": self.num_blocks, **LAYOUTS[rank]}}})
        return peer

    def form(self):
        self.groups += 1
        self.group = f"g{self.groups}"
        body = {"name": self.group, "world_size": RANKS, "device_id": 0}
        unique_id = self.peers[0].ask("POST", "/v1/groups", {**body, "rank": 0})["unique_id"]
        for rank in range(1, RANKS):
            self.peers[rank].ask("POST", "/v1/groups", {**body, "rank": rank, "unique_id": unique_id})

    def each(self, do, peers=None):
        return list(self.everyone.map(do, peers or self.peers))

    def broadcast(self, root, numbers, cache="c"):
        body = {"cache": cache, "keys": [key(n) for n in numbers], "root": root, "wait_ms": 10_000}
        for transfer in self.each(lambda peer: peer.ended(peer.ask("POST", f"/v1/groups/{self.group}/broadcast", body))):
            assert transfer["state"] == "done", transfer

    def request(self, turn, ids):
        root = turn % RANKS
        peer = self.peers[root]
        match = peer.ask("POST", "/v1/caches/c/match", {"keys": [key(n) for n in ids], "lease_ms": 60_000})
        matched = match["matched"]
        for some in chunks(ids[:matched]):
            self.counts["wrong_or_missing"] += peer.wrong_of(some)
        self.counts["read_by_requests"] += matched
        if match["lease"]:
            peer.ask("DELETE", f"/v1/leases/{match['lease']}")
        for at in range(matched, len(ids)):
            self.computed[ids[at]] = self.computed.get(ids[at], 0) + 1
            parent = f"?parent={key(ids[at - 1])}" if at else ""
            peer.ask("PUT", f"/v1/caches/c/keys/{key(ids[at])}{parent}", block(ids[at]))
        if matched < len(ids):
            self.broadcast(root, ids[matched:])
            self.counts["shared_bytes"] += (len(ids) - matched) * BLOCK_BYTES * (RANKS - 1)

    def lose_one(self, blocks):
        """Kills a server in the middle of a broadcast and replaces it."""
        loss = len(self.losses)
        root, victim = LOSSES[loss % len(LOSSES)]
        left = [rank for rank in range(RANKS) if rank != victim]
        for rank, peer in enumerate(self.peers):
            peer.ask("PUT", "/v1/caches/large", {"layout": LARGE_SHAPE, "tiers": {
                "pinned": {"num_blocks": blocks + 1, **LAYOUTS[rank]}}})
        for n in range(blocks):
            self.peers[root].ask("PUT", f"/v1/caches/large/keys/{large_key(loss, n)}", large_block(loss, n))
        self.large_writes += blocks
        counted = self.peers[victim].writes()
        self.lost_writes = tuple(a + b for a, b in zip(self.lost_writes, counted))
        transfers, moved = self.stop_in_the_middle(loss, blocks, root, victim)
        self.peers[victim].stop(signal.SIGKILL)
        killed = time.monotonic()

        def end_of(rank):
            return self.peers[rank].ended(transfers[rank]), time.monotonic() - killed

        ends = dict(zip(left, self.each(end_of, left)))
        for rank, (transfer, _) in ends.items():
            peer = self.peers[rank]
            # A wait that times out would have another code.
            assert transfer["state"] == "failed" and transfer["error"]["code"] == "peer_lost", transfer
            assert transfer["blocks_done"] + len(transfer["failures"]) == blocks, "a key neither arrived nor is named"
            assert peer.ask("GET", f"/v1/groups/{self.group}")["state"] == "failed"
            refused = peer.ask("POST", f"/v1/groups/{self.group}/broadcast",
                               {"cache": "c", "keys": [key(0)], "root": root}, good=(503,))
            assert refused["code"] == "unavailable", refused
        self.each(lambda rank: self.check_serving(loss, blocks, rank, holds=rank == root), left)
        self.large_writes += len(left)
        for rank in left:
            self.peers[rank].ask("DELETE", f"/v1/groups/{self.group}")
            self.peers[rank].ask("DELETE", "/v1/caches/large")
        self.peers[victim] = self.start(victim)
        self.form()
        for some in chunks(list(self.computed)):
            self.broadcast(left[0], some)
        self.counts["shared_bytes"] += len(self.computed) * BLOCK_BYTES
        self.losses.append({"killed": victim, "root": root, "blocks_done_when_killed": moved, "of": blocks,
                            "error": "peer_lost", "told_after_s": round(max(s for _, s in ends.values()), 3)})

    def stop_in_the_middle(self, loss, blocks, root, victim):
        """Stops `victim` so that a broadcast halts halfway. Returns its transfers, and how many blocks had arrived
        at the observed server."""
        body = {"cache": "large", "keys": [large_key(loss, n) for n in range(blocks)], "root": root}
        watched = self.peers[root if root != victim else (root + RANKS - 1) % RANKS]
        for _ in range(STOPS):
            transfers = self.each(lambda peer: peer.ask("POST", f"/v1/groups/{self.group}/broadcast", body))
            mine = transfers[self.peers.index(watched)]["transfer"]
            seen = watched.transfer(mine)
            while seen["blocks_done"] == 0:
                assert seen["state"] in ("queued", "running"), seen
                seen = watched.transfer(mine)
            self.peers[victim].child.send_signal(signal.SIGSTOP)
            seen = watched.transfer(mine)
            if seen["blocks_done"] + IN_FLIGHT_BLOCKS <= blocks:
                assert seen["state"] == "running" and seen["blocks_done"] > 0, seen
                return transfers, seen["blocks_done"]
            # The machine was too busy to look in time: try again. (The last pieces may be in sockets already and
            # may not need the stopped server any more.)
            self.peers[victim].child.send_signal(signal.SIGCONT)
            self.each(lambda pair: pair[0].ended(pair[1]), list(zip(self.peers, transfers)))
            for rank, peer in enumerate(self.peers):
                if rank != root:
                    peer.ask("POST", "/v1/caches/large/clear", {})
        raise AssertionError(f"in {STOPS} broadcasts this machine looked too late; --large-blocks makes them longer")

    def check_serving(self, loss, blocks, rank, holds):
        """A server that has lost its group answers as before."""
        peer = self.peers[rank]
        held = list(self.computed)[-SAMPLE:]
        self.counts["wrong_or_missing"] += peer.wrong_of(held)
        for n in held:
            assert peer.ask("POST", "/v1/caches/c/match", {"keys": [key(n)], "lease_ms": 0})["matched"] == 1
        for n in range(blocks):
            path = f"/v1/caches/large/keys/{large_key(loss, n)}"
            data = peer.ask("GET", path, good=(200,) if holds else (200, 404))
            assert isinstance(data, dict) or data == large_block(loss, n), f"rank {rank}: large block {n}"
        one = f"/v1/caches/large/keys/{large_key(loss, blocks)}"
        peer.ask("PUT", one, large_block(loss, blocks))
        assert peer.ask("GET", one) == large_block(loss, blocks)

    def check_all(self):
        numbers = list(self.computed)
        for some in chunks(numbers):
            self.counts["wrong_or_missing"] += sum(self.each(lambda peer: peer.wrong_of(some)))
        writes, repeated = map(sum, zip(self.lost_writes, *self.each(Peer.writes)))
        return {"blocks": len(numbers), "computed_twice": sum(times > 1 for times in self.computed.values()),
                "written": writes - self.large_writes, "written_twice": repeated, "read_on_all": RANKS * len(numbers)}

    def stop(self):
        for peer in self.peers:
            peer.child.send_signal(signal.SIGCONT)
            peer.stop()


def generated(seed, count):
    """Sessions, some with a common beginning. Each turn contains the earlier ones."""
    chance = random.Random(seed)
    fresh = iter(range(1 << 30))
    beginnings = [[next(fresh) for _ in range(3)] for _ in range(3)]
    sessions = [list(chance.choice(beginnings)) for _ in range(8)]
    for _ in range(count):
        session = chance.choice(sessions)
        session += [next(fresh) for _ in range(chance.randint(1, 6))]
        yield list(session)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program")
    parser.add_argument("--trace", help="JSON lines with hash_ids, equal ids for equal prefixes")
    parser.add_argument("--limit", type=int, help="requests (all of the trace's; 200 are generated)")
    parser.add_argument("--kills", type=int, default=3, help="servers to kill on the way (default 3)")
    parser.add_argument("--large-blocks", type=int, default=384, help="of 512 KiB, in the broadcasts that are cut off")
    parser.add_argument("--seed", type=int, help="of what is generated")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 30)
    if arguments.trace:
        with open(arguments.trace) as lines:
            requests = [json.loads(line)["hash_ids"] for line in lines][:arguments.limit]
    else:
        print(f"--seed {seed}", flush=True)
        requests = list(generated(seed, arguments.limit or 200))
    different = len({n for ids in requests for n in ids})
    kill_at = {len(requests) * (k + 1) // (arguments.kills + 1) for k in range(arguments.kills)}
    with Folder() as folder:
        sharing = Sharing(arguments.program, folder, different)
        try:
            start = time.monotonic()
            for turn, ids in enumerate(requests):
                if turn in kill_at:
                    sharing.lose_one(arguments.large_blocks)
                sharing.request(turn, ids)
            seconds = time.monotonic() - start
            result = {"requests": len(requests), **sharing.check_all(), **sharing.counts, "seconds": round(seconds, 1),
                      "losses": sharing.losses}
        finally:
            sharing.stop()
    print(json.dumps(result))
    right = (result["blocks"] == result["written"] == different and not result["computed_twice"]
             and not result["written_twice"] and not result["wrong_or_missing"] and len(sharing.losses) == len(kill_at))
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
