"""What the server has acknowledged for each key, and so what it may answer after any kind of end."""

import hashlib
import threading
import time

BLOCK_BYTES = 6144  # a page and a half, so that the rest of its slot is unused
SHAPE = {"num_layers": 2, "outer_dim": 2, "page_size": 4, "inner_dim": 192, "dtype_width_bytes": 2}
# KV groups of one cache: blocks as above, and states that are four times as large and some bytes.
STATE_BYTES = 25000
STATE = {"num_layers": 5, "outer_dim": 1, "page_size": 1, "inner_dim": 2500, "dtype_width_bytes": 2}
KV_GROUPS = {"block_tokens": 4, "kv_groups": [{"name": "full", "kind": "full", "layout": SHAPE},
                                              {"name": "state", "kind": "state", "layout": STATE}]}
ABSENT = None


def block_of(cache, key, version, size=BLOCK_BYTES):
    """Half of the keys have numbers that a codec makes shorter."""
    block = bytearray(hashlib.shake_128(f"{cache}/{key}/{version}".encode()).digest(size))
    if key[-1] in "02468ace":
        block[1::2] = b"\x3f" * (size // 2)
    return bytes(block)


class Key:
    """One key of one cache. Each version has different bytes, so that bytes of an earlier version are noticed.
    Only one request changes a key at a time."""

    def __init__(self, cache, number, keeps, kv_group=None):
        self.cache = cache
        self.kv_group = kv_group  # None: the cache has one group
        self.name = hashlib.sha256(f"{cache}.{number}".encode()).hexdigest()
        self.keeps = keeps  # nothing is evicted in this cache: promised blocks may not be missing
        self.version = 0  # the last version ever sent
        self.may = {ABSENT}  # the versions that may be found
        self.begun_at = self.answered_at = 0.0  # times of the last request that changed it, and of its answer

    def bytes(self, version):
        return block_of(self.cache, self.name, version, STATE_BYTES if self.kv_group == "state" else BLOCK_BYTES)

    def path(self, query=""):
        """Of the key, under the server's root."""
        queries = [query] if query else []
        if self.kv_group:
            queries.append(f"kv_group={self.kv_group}")
        return f"/v1/caches/{self.cache}/keys/{self.name}" + ("?" + "&".join(queries) if queries else "")

    def begin(self, *outcomes):
        """A request was sent that may change the key to one of these versions."""
        self.begun_at = time.monotonic()
        self.may = self.may | set(outcomes)

    def answered(self, *outcomes):
        """An answer came: the key has one of these versions now."""
        self.may = set(outcomes)
        self.answered_at = time.monotonic()

    def next_version(self):
        self.version += 1
        return self.version

    def version_of(self, data):
        """The version that these bytes are. Raises AssertionError if they are none."""
        for version in range(self.version, 0, -1):
            if data == self.bytes(version):
                return version
        raise AssertionError(f"WRONG BYTES under {self.name} of {self.cache}")

    def promised(self):
        return self.keeps and ABSENT not in self.may

    def settled_before(self, moment):
        return self.begun_at <= self.answered_at < moment


class Rules:
    """How strictly found blocks are compared with the acknowledged ones."""

    def __init__(self, checkpoint_at=None, erased_may_be_back=False, damaged=(), lossy=False):
        # After a power cut, only what was acknowledged before the start of the last finished checkpoint is
        # promised.
        self.checkpoint_at = checkpoint_at
        self.erased_may_be_back = erased_may_be_back
        self.damaged = set(damaged)  # (cache, key) whose bytes on disk were damaged
        self.lossy = lossy  # the disk failed some calls: an unreadable copy is gone

    def allowed(self, key):
        allowed = set(key.may)
        recent = self.checkpoint_at is not None and not key.settled_before(self.checkpoint_at)
        if not key.keeps or self.lossy or recent or (key.cache, key.name) in self.damaged:
            allowed.add(ABSENT)
        if recent or (self.erased_may_be_back and ABSENT in allowed):
            allowed |= set(range(1, key.version + 1))
        elif self.erased_may_be_back:  # the last version that reached a slot counts, acknowledged or not
            allowed |= set(range(min(allowed), key.version + 1))
        return allowed


class Tally:
    """Counts that many threads add to."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = {}

    def add(self, name, by=1):
        with self.lock:
            self.counts[name] = self.counts.get(name, 0) + by

    def __getitem__(self, name):
        return self.counts.get(name, 0)
