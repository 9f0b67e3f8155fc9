"""What a client was told of each key, and so what a server may say of it after any end of its life."""

import hashlib
import threading
import time

BLOCK_BYTES = 6144  # a page and a half: what lies behind a block in its slot is nobody's
SHAPE = {"num_layers": 2, "outer_dim": 2, "page_size": 4, "inner_dim": 192, "dtype_width_bytes": 2}
ABSENT = None


def block_of(cache, key, version):
    return hashlib.shake_128(f"{cache}/{key}/{version}".encode()).digest(BLOCK_BYTES)


class Key:
    """One key of one cache. A key that is stored again after it was erased gets other bytes, so that what
    comes back from an earlier life is found out. Only one request changes it at a time."""

    def __init__(self, cache, number, keeps):
        self.cache = cache
        self.name = hashlib.sha256(f"{cache}.{number}".encode()).hexdigest()
        self.keeps = keeps  # nothing is evicted there: what was promised may not be missing
        self.version = 0  # the last one that was ever sent
        self.may = {ABSENT}  # what may be found
        self.begun_at = self.told_at = 0.0  # the last request that changed it; its answer

    def bytes(self, version):
        return block_of(self.cache, self.name, version)

    def begin(self, *outcomes):
        """A request is sent that may make it one of these."""
        self.begun_at = time.monotonic()
        self.may = self.may | set(outcomes)

    def told(self, *outcomes):
        """An answer came: it is one of these now."""
        self.may = set(outcomes)
        self.told_at = time.monotonic()

    def next_version(self):
        self.version += 1
        return self.version

    def version_of(self, data):
        """Which of its bytes these are; an AssertionError where they are none."""
        for version in range(self.version, 0, -1):
            if data == self.bytes(version):
                return version
        raise AssertionError(f"WRONG BYTES under {self.name} of {self.cache}")

    def promised(self):
        return self.keeps and ABSENT not in self.may

    def settled_before(self, moment):
        return self.begun_at <= self.told_at < moment


class Rules:
    """How strictly what is found is compared with what was told."""

    def __init__(self, checkpoint_at=None, erased_may_be_back=False, damaged=(), lossy=False):
        # After a power cut only what was told before the last finished checkpoint began is promised.
        self.checkpoint_at = checkpoint_at
        self.erased_may_be_back = erased_may_be_back
        self.damaged = set(damaged)  # (cache, key) whose bytes on disk are not what was written
        self.lossy = lossy  # the disk failed calls: a copy that could not be read is gone

    def allowed(self, key):
        allowed = set(key.may)
        recent = self.checkpoint_at is not None and not key.settled_before(self.checkpoint_at)
        if not key.keeps or self.lossy or recent or (key.cache, key.name) in self.damaged:
            allowed.add(ABSENT)
        if recent or (self.erased_may_be_back and ABSENT in allowed):
            allowed |= set(range(1, key.version + 1))
        elif self.erased_may_be_back:  # the last one that reached a slot counts, told of or not
            allowed |= set(range(min(allowed), key.version + 1))
        return allowed


class Tally:
    """Counts of many threads."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = {}

    def add(self, name, by=1):
        with self.lock:
            self.counts[name] = self.counts.get(name, 0) + by

    def __getitem__(self, name):
        return self.counts.get(name, 0)
