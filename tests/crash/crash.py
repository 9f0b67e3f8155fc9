#!/usr/bin/env python3
"""Kills a server with a disk tier repeatedly while clients write, at random moments and at the worst places,
starts it again, and compares every acknowledged block: it is intact or absent, never wrong and never another's,
and no promised block is lost. Also during a restore that replaces a cache, with damaged sectors, a damaged index, a power cut, a disk that fails calls,
and a full disk.

usage: crash.py CAIRN_SERVER [--kills N] [--seed N] [--faults LIBRARY]
"""

import argparse
import http.client
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ops"))

import damage  # noqa: E402
from ledger import ABSENT, KV_GROUPS, SHAPE, Key, Rules, Tally  # noqa: E402
from storm import Gone, Line, Storm, verify  # noqa: E402
from support import Folder, Server, eventually  # noqa: E402

WRITERS = 4
# One cache in which nothing is evicted, so that every promised block must exist; one in which everything moves
# through small tiers; and one whose memory goes from blocks to states and back.
CACHES = {
    "keeps": {"tiers": {"pinned": {"num_blocks": 256}, "disk": {"num_blocks": 512, "codec": "bytes"}}},
    "tight": {"tiers": {"device": {"num_blocks": 8, "layout": "layer_separate"}, "pinned": {"num_blocks": 16},
                        "disk": {"num_blocks": 40}}},
    "groups": {**KV_GROUPS, "tiers": {"pinned": {"size_bytes": 250_000},
                                      "disk": {"size_bytes": 750_000, "codec": "bytes"}}},
}
KEYS = {"keeps": 160, "tight": 120, "groups": 100}
PLACES = ["commit.header_written", "commit.noted", "move.written", "erase.noted", "checkpoint.begun",
          "checkpoint.written", "checkpoint.ended"]


class Watch(threading.Thread):
    """Notes when each log of an index appears: a checkpoint begins with a new log."""

    def __init__(self, slots):
        super().__init__(daemon=True)
        self.slots = slots
        self.absent_at = {}  # by log number: when the log was last seen missing
        self.ended = threading.Event()
        self.start()

    def run(self):
        while not self.ended.wait(0.002):
            now = time.monotonic()
            numbers = damage.logs_of(self.slots)
            self.absent_at[max(numbers, default=0) + 1] = now

    def checkpoint_at(self):
        """The last finished checkpoint contains everything acknowledged before this moment."""
        self.ended.set()
        self.join()
        return self.absent_at.get(damage.checkpoint_number(self.slots), 0.0)


class Site:
    """A data folder, and the servers that run on it one after another."""

    def __init__(self, program, folder, seed, tally):
        self.program, self.folder, self.tally = program, folder, tally
        self.random = random.Random(seed)
        self.seed = seed
        self.groups = [[] for _ in range(WRITERS)]
        for cache, count in KEYS.items():
            for number in range(count):
                kv_group = ["full", "full", "state"][number % 3] if cache == "groups" else None
                self.groups[number % WRITERS].append(Key(cache, number, cache == "keeps", kv_group))
        self.keys = [key for group in self.groups for key in group]
        self.slot_files = [damage.slot_file(folder, cache) for cache in CACHES]
        self.failures = []
        self.server = None

    def start(self, crash_at="", engine=None, checkpoint_ms=None, env=None):
        disk = {"engine": engine or self.random.choice(["auto", "threads"]), "crash_at": crash_at,
                "direct": self.random.random() < 0.7,
                "checkpoint_period_ms": checkpoint_ms or self.random.choice([50, 300])}
        (self.folder / "config.json").write_text(json.dumps({"caches": [], "disk": disk}))
        self.server = Server(self.program, self.folder, "--config", self.folder / "config.json", "--runtime", "host",
                             "--threads", "2", env={**os.environ, **(env or {})})
        self.tally.add("starts from headers", self.server.text().count('from=headers'))

    def make_caches(self):
        for name, body in CACHES.items():
            status, answer = self.server.call("PUT", f"/v1/caches/{name}", body if "kv_groups" in body else {"layout": SHAPE, **body})
            assert status in (200, 201), answer

    def kill(self, name="kills of an idle server"):
        code = self.server.stop(signal.SIGKILL)
        if code != -signal.SIGKILL:
            self.failures.append(f"the server ended with {code} before it was killed:\n{self.server.text()[-2000:]}")
        self.tally.add(name)

    def stop(self):
        """Ends whatever still runs. A round may have ended anywhere, and one of another site never began here."""
        if self.server and self.server.child.poll() is None:
            self.server.stop(signal.SIGKILL)

    def storm_until_killed(self, crash_at="", lossy=False, seconds=(0.02, 0.6)):
        self.make_caches()
        storm = Storm(self.server.address, self.groups, self.random.random(), self.tally, lossy)
        if crash_at:
            # The server may not reach that place so often, so do not wait without limit.
            deadline = time.monotonic() + 3
            while self.server.child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
            self.tally.add(f"killed at {crash_at.split(':')[0]}", int(self.server.child.poll() is not None))
        else:
            time.sleep(self.random.uniform(*seconds))
        self.kill("kills")
        self.failures += storm.join()

    def compare(self, rules):
        for cache in CACHES:  # a missing cache would look like lost blocks
            status, answer = self.server.call("GET", f"/v1/caches/{cache}")
            assert status == 200, f"{cache}: {answer}\n{self.server.text()[-2000:]}"
        self.failures += verify(self.server.address, self.keys, rules, self.tally)

    # Rounds: each begins and ends without a server ------------------------------------------------------

    def killed(self, crash_at=""):
        self.start(crash_at)
        self.storm_until_killed(crash_at)
        self.start()
        self.compare(Rules())
        self.kill()

    def power_cut(self, faults):
        undo = self.folder / "undo"
        undo.unlink(missing_ok=True)
        self.start(engine="threads", checkpoint_ms=100,
                   env={"LD_PRELOAD": faults, "CAIRN_FAULTS_UNDER": str(self.folder / "data/disk"),
                        "CAIRN_FAULTS_UNDO": str(undo), "ASAN_OPTIONS": "verify_asan_link_order=0"})
        self.make_caches()
        watches = {slots.name: Watch(slots) for slots in self.slot_files}
        self.storm_until_killed(seconds=(0.3, 1))
        moments = {name: watch.checkpoint_at() for name, watch in watches.items()}
        assert undo.exists(), "the library of faults was not loaded"
        self.tally.add("pages lost", damage.cut_power(undo, self.slot_files, self.random))
        self.tally.add("power cuts")
        self.start()
        self.compare(Rules(checkpoint_at=moments["keeps"], erased_may_be_back=True))
        self.kill()

    def failing_disk(self, faults):
        for kind in ("READ", "WRITE"):
            self.start(engine="threads",
                       env={"LD_PRELOAD": faults, "CAIRN_FAULTS_UNDER": str(self.folder / "data/disk"),
                            f"CAIRN_FAULTS_{kind}_EVERY": str(self.random.randint(3, 30)),
                            "CAIRN_FAULTS_ERRNO": str(self.random.choice([5, 28])),
                            "ASAN_OPTIONS": "verify_asan_link_order=0"})
            self.storm_until_killed(lossy=True)
            self.start()
            self.compare(Rules(lossy=True))
            self.kill()
            self.tally.add("rounds with a failing disk")

    def damaged_blocks(self):
        """Exactly the damaged blocks are misses, and they are counted."""
        self.start()
        self.storm_until_killed()
        self.start()
        self.compare(Rules())
        line, there = Line(self.server.address), []
        for cache in CACHES:
            blocks = line.call("GET", f"/v1/caches/{cache}/blocks?tier=disk&limit=1000")[1]["blocks"]
            there += [(cache, block["key"], block["slot"]) for block in blocks]
        self.kill()
        victims = self.random.sample(there, min(10, len(there)))
        for cache, _, slot in victims:
            kind = damage.damage_block(damage.slot_file(self.folder, cache), slot, self.random)
            self.tally.add(f"blocks damaged: {kind}")
        self.start()
        absent = self.tally["absent"]
        damaged = {(cache, key) for cache, key, _ in victims}
        rules = Rules(damaged=damaged)
        present = [key for key in self.keys if (key.cache, key.name) in {(c, k) for c, k, _ in there}]
        for key in present:  # in both caches, because nothing runs that could evict
            key.keeps = True
        self.failures += verify(self.server.address, present, rules, self.tally)
        for key in present:
            key.keeps = key.cache == "keeps"
        missed = self.tally["absent"] - absent
        counted = line_of(self.server, 'cairn_checksum_failures_total{tier="disk"}')
        if not missed == counted == len(victims):
            self.failures.append(f"{len(victims)} blocks were damaged: {missed} are misses, {counted:g} were counted")
        self.kill()

    def damaged_index(self):
        """The slots' headers have the information that the index lost."""
        self.start()
        self.storm_until_killed()
        what = [damage.damage_index(slots, self.random) for slots in self.slot_files]
        self.tally.add("indexes damaged", len(what))
        self.start()
        before = len(self.failures)
        self.compare(Rules(erased_may_be_back=True))
        if len(self.failures) > before:
            self.failures.insert(0, f"(after {what})")
        self.kill()

    def killed_in_a_restore(self, crash_at):
        """Each block is the snapshot's, the one before, or absent. The same restore then has all of the snapshot."""
        cache = self.random.choice(list(CACHES))
        path, mine = f"/v1/caches/{cache}", [key for key in self.keys if key.cache == cache]
        self.start()
        self.make_caches()
        self.compare(Rules())
        for key in mine[:30]:  # so that there is something to restore
            self.store_again(key)
        self.failures += verify(self.server.address, self.keys, Rules(lossy=True), self.tally)
        saved = {key: set(key.may) for key in mine}
        self.server.call("DELETE", f"{path}/snapshots/r")
        status, made = self.server.call("POST", f"{path}/snapshots", {"name": "r", "wait_ms": 60000})
        assert (status, made["state"]) == (200, "done"), made
        for key in self.random.sample(mine, len(mine) // 3):
            self.store_again(key)
        before = {key: set(key.may) for key in mine}
        self.kill()

        self.start(crash_at)
        place, answer = crash_at.split(":")[0], None
        try:
            answer = self.server.call("POST", f"{path}/snapshots/r/restore", {"replace": True, "wait_ms": 60000})
        except (OSError, http.client.HTTPException):
            self.server.child.wait(10)  # it was killed
        # A restore without blocks commits none.
        assert answer is None or place != "restore.emptied", answer
        self.tally.add(f"killed at {place}", int(answer is None))
        self.kill("kills")
        self.start()
        for key in mine:
            key.may = saved[key] | before[key] | {ABSENT}
        self.compare(Rules())

        status, done = self.server.call("POST", f"{path}/snapshots/r/restore", {"replace": True, "wait_ms": 60000})
        assert (status, done["state"]) == (200, "done"), done
        missing = [key.name for key in mine
                   if ABSENT not in saved[key] and self.server.call("GET", key.path())[0] != 200]
        if missing:
            self.failures.append(f"not restored: {missing}")
        for key in mine:
            key.answered(*saved[key])
        self.compare(Rules())
        self.kill()

    def store_again(self, key):
        """Under another version of the key's bytes."""
        self.server.call("DELETE", key.path())
        version = key.next_version()
        status, _ = self.server.call("PUT", key.path("tier=disk"), key.bytes(version))
        key.answered(*((version,) if status == 201 else (ABSENT,)))

    def full_disk(self):
        """A full disk is reported and counted. No block is lost, and once there is room everything works again."""
        disk = self.folder / "full" / "data" / "disk"
        disk.mkdir(parents=True, exist_ok=True)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], capture_output=True)
        if mounted.returncode != 0:
            return self.tally.add("full disks left out: mounting is not possible here")
        site = Site(self.program, disk.parents[1], self.random.random(), self.tally)
        try:
            site.fill_the_disk(disk / "ballast")
        finally:
            site.stop()
            self.failures += site.failures
            subprocess.run(["umount", disk], check=True)
            shutil.rmtree(disk.parents[1])
        self.tally.add("full disks")

    def fill_the_disk(self, ballast):
        self.start(checkpoint_ms=50)
        self.make_caches()
        with open(ballast, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        status, answer = self.server.call("PUT", "/v1/caches/more", {"layout": SHAPE, **CACHES["keeps"]})
        assert (status, answer["code"]) == (507, "no_capacity"), answer
        self.storm_until_killed(seconds=(0.4, 0.6))
        self.start()  # the server serves what it can
        assert self.server.call("GET", "/healthz")[0] == 200
        self.kill()
        ballast.unlink()
        self.start()
        self.compare(Rules())


def line_of(server, series):
    for line in server.call("GET", "/metrics")[1].decode().splitlines():
        if line.startswith(series + " "):
            return float(line.split()[-1])
    return 0.0


def rounds(faults, chance):
    """Yields rounds without end: every kind once, then as many kills at random moments, and again."""

    def at(place):
        # A start with many logs may make a checkpoint of each cache at once, before there are clients.
        first, last = (len(CACHES) + 1, len(CACHES) + 3) if place.startswith("checkpoint") else (1, 40)
        return f"{place}:{chance.randint(first, last)}"

    fixed = [("killed", at(place)) for place in PLACES]
    fixed += [("killed_in_a_restore", f"{place}:1") for place in ("restore.emptied", "commit.noted", "commit.header_written")]
    fixed += [("damaged_blocks",), ("damaged_index",), ("full_disk",)]
    if faults:
        fixed += [("power_cut", faults), ("failing_disk", faults)]
    chance.shuffle(fixed)
    while True:
        yield from fixed
        for _ in fixed:
            yield ("killed", at(chance.choice(PLACES)) if chance.random() < 0.5 else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("server")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--faults", help="the library that fakes disk faults; without it there are no power cuts")
    parser.add_argument("--only", metavar="ROUND", help="one kind of round, such as power_cut")
    parser.add_argument("--without", metavar="ROUND", help="all kinds of rounds but this one")
    options = parser.parse_args()
    kinds = {name for name, *_ in itertools.islice(rounds(options.faults, random.Random()), 2 * len(PLACES))}
    if options.only and options.only not in kinds:
        parser.error(f"--only takes one of {', '.join(sorted(kinds))}; power cuts and failing disks need --faults")
    print(f"seed {options.seed}, {options.kills} kills", flush=True)
    chance, tally, failures = random.Random(options.seed), Tally(), []
    began = time.monotonic()
    with Folder() as folder:
        site = Site(options.server, folder, options.seed, tally)
        for name, *arguments in rounds(options.faults, chance):
            if name == options.without or (options.only and name != options.only):
                continue
            if tally["kills"] >= options.kills:
                break
            before = tally["kills"]
            try:
                getattr(site, name)(*arguments)
            except (AssertionError, Gone) as failure:
                site.failures.append(f"{failure!r}")
            if site.failures:
                log = site.server.text()[-3000:] if site.server else ""
                failures = [f"in round {name}{arguments}:", log] + site.failures
                break
            if options.only and tally["kills"] == before:
                break  # this round is impossible here; repeating it would never end
        site.stop()
    width = max(map(len, tally.counts), default=0)
    for name, count in sorted(tally.counts.items()):
        print(f"{name:{width}} {count:8}")
    print(f"{tally['kills']} kills in {time.monotonic() - began:.0f} s: {tally['compared']} acknowledged blocks compared, "
          f"{tally['promised']} promised, {tally['lost']} of those lost, {tally['wrong']} with wrong bytes, "
          f"{tally['came back']} that should have stayed away")
    print(*failures[:12], sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
