"""Writers that store, move, read and erase blocks over HTTP until the server is gone."""

import http.client
import json
import random
import struct
import threading

from ledger import ABSENT
from support import PATIENCE_S


class Gone(Exception):
    """The server no longer answers."""


class Line:
    """A persistent connection."""

    def __init__(self, address):
        host, port = address.split(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)

    def call(self, method, path, body=None):
        headers = {}
        if isinstance(body, dict):
            body, headers["Content-Type"] = json.dumps(body), "application/json"
        elif body is not None:
            headers["Content-Type"] = "application/octet-stream"
        try:
            self.connection.request(method, path, body, headers)
            answer = self.connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as failure:
            raise Gone() from failure
        if "json" in (answer.getheader("Content-Type") or ""):
            data = json.loads(data)
        return answer.status, data


# Temporary refusals: no room, a leased block, a disk fault with its code.
REFUSALS = (404, 409, 410, 429, 500, 503, 507)


class Writer(threading.Thread):
    """Changes only its own keys, one request at a time."""

    def __init__(self, address, keys, seed, tally, lossy):
        super().__init__(daemon=True)
        self.lossy = lossy
        self.line = Line(address)
        self.keys = keys
        self.random = random.Random(seed)
        self.tally = tally
        self.stopping = threading.Event()
        self.failure = None

    def run(self):
        steps = [self.put, self.put, self.write_many, self.commit, self.move, self.move, self.erase, self.evict, self.get]
        try:
            while not self.stopping.is_set():
                key = self.random.choice(self.keys)
                self.random.choice(steps)(key)
                self.tally.add("requests")
        except Gone:
            pass
        except Exception as failure:
            self.failure = f"{failure!r}"

    def path(self, key, rest):
        return f"/v1/caches/{key.cache}{rest}"

    def refused(self, status, data):
        assert status in REFUSALS, f"{status} {data}"
        self.tally.add("refused")

    def absent(self, key):
        return key.may == {ABSENT}

    def put(self, key, tier="disk"):
        if not self.absent(key):
            return self.get(key)
        version = key.next_version()
        key.begin(version)
        status, data = self.line.call("PUT", key.path(f"tier={tier}"), key.bytes(version))
        if status != 201:
            key.answered(ABSENT)
            return self.refused(status, data)
        # A block that is only in memory ends with the process.
        key.answered(*((version,) if tier == "disk" else (version, ABSENT)))

    def write_many(self, key):
        keys = list({k.name: k for k in self.random.sample(self.keys, 4) if (k.cache, k.kv_group) == (key.cache, key.kv_group) and self.absent(k)}.values())
        if not keys:
            return
        for each in keys:
            each.begin(each.next_version())
        group = {"kv_group": key.kv_group} if key.kv_group else {}
        header = json.dumps({"keys": [k.name for k in keys], "tier": "disk", "parents": [None] * len(keys),
                             **group}).encode()
        body = struct.pack("<I", len(header)) + header + b"".join(k.bytes(k.version) for k in keys)
        status, data = self.line.call("POST", self.path(key, "/write"), body)
        for each in keys:
            each.answered(each.version if status in (200, 201) else ABSENT)
        if status not in (200, 201):
            self.refused(status, data)

    def commit(self, key):
        """Like a frontend: allocates a slot, writes its bytes, commits its key."""
        if not self.absent(key):
            return
        count = {"counts": {key.kv_group: 1}} if key.kv_group else {"count": 1}
        status, held = self.line.call("POST", self.path(key, "/allocate"), {**count, "tier": "disk", "lease_ms": 60000})
        if status != 200:
            return self.refused(status, held)
        handle, version = held["blocks"][0], key.next_version()
        place = f"/slots/disk/{handle['slot']}/data?generation={handle['generation']}&lease={held['lease']}"
        place += f"&kv_group={key.kv_group}" if key.kv_group else ""
        status, data = self.line.call("PUT", self.path(key, place), key.bytes(version))
        if status // 100 == 2:
            key.begin(version)
            status, data = self.line.call("POST", self.path(key, "/commit"), {
                "lease": held["lease"], "blocks": [{**handle, "key": key.name, "metadata": {"n": version}}]})
            key.answered(version if status == 200 else ABSENT)
        if status // 100 != 2:
            self.refused(status, data)
        self.line.call("DELETE", f"/v1/leases/{held['lease']}")

    def move(self, key):
        """Stores in memory, then moves to disk: promised once the transfer is done."""
        self.put(key, "pinned")
        status, data = self.line.call("POST", self.path(key, "/transfers"),
                                      {"keys": [key.name], "to": "disk", "wait_ms": 60000,
                                       "mode": self.random.choice(["copy", "move"])})
        if status == 200 and data["state"] == "done":
            self.tally.add("transfers done")
            key.answered(*(key.may - {ABSENT}))
        elif status == 200:
            self.tally.add("transfers failed")
        else:
            self.refused(status, data)

    def erase(self, key):
        key.begin(ABSENT)
        status, data = self.line.call("DELETE", key.path())
        if status in (204, 404):
            key.answered(ABSENT)
        else:
            self.refused(status, data)

    def evict(self, key):
        key.begin(ABSENT)
        status, data = self.line.call("POST", self.path(key, "/evict"), {"keys": [key.name]})
        if status == 200 and data["leased"] == 0:
            key.answered(ABSENT)
        elif status != 200:
            self.refused(status, data)

    def get(self, key):
        status, data = self.line.call("GET", key.path())
        if status == 200:
            version = key.version_of(data)
            assert version in key.may, f"an earlier life of {key.name} of {key.cache}: {version}, not {key.may}"
        elif status == 404:
            assert self.lossy or not key.promised(), f"lost while the server lives: {key.name} of {key.cache}"
            key.answered(ABSENT)  # the block was evicted
        else:
            self.refused(status, data)


class Storm:
    """All writers, until the server is gone or they are stopped."""

    def __init__(self, address, groups, seed, tally, lossy=False):
        self.writers = [Writer(address, keys, f"{seed}.{number}", tally, lossy) for number, keys in enumerate(groups)]
        for writer in self.writers:
            writer.start()

    def join(self):
        """Returns the failures. A writer that does not end is one."""
        for writer in self.writers:
            writer.stopping.set()
        for writer in self.writers:
            writer.join(PATIENCE_S)
        return [w.failure or "a writer never ended" for w in self.writers if w.failure or w.is_alive()]


def verify(address, keys, rules, tally):
    """Reads every key, sets the ledger to what exists, and returns the failures."""
    line, failures = Line(address), []
    for key in keys:
        status, data = line.call("GET", key.path())
        if status >= 500 and (rules.lossy or (key.cache, key.name) in rules.damaged):
            status, data = line.call("GET", key.path())  # the server has dropped the unreadable copy
        allowed = rules.allowed(key)
        tally.add("compared" if key.may != {ABSENT} else "erased, compared")
        try:
            assert status in (200, 404), f"{status} for {key.name} of {key.cache}: {data[:300]}"
            found = key.version_of(data) if status == 200 else ABSENT
            tally.add("promised", int(ABSENT not in allowed))
            if found not in allowed:
                tally.add("lost" if found is ABSENT else "came back")
                failures.append(f"{key.name} of {key.cache}: found {found}, acknowledged {sorted(key.may, key=str)}, "
                                f"allowed {sorted(allowed, key=str)}")
            elif found is ABSENT and key.may != {ABSENT}:
                tally.add("absent")
            elif found is not ABSENT:
                tally.add("intact")
        except AssertionError as wrong:
            tally.add("wrong")
            failures.append(str(wrong))
            continue
        key.answered(found)
    return failures
