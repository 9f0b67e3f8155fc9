#!/usr/bin/env python3
"""Damages every file of a data directory, round after round, and kills the server in between: flips random bits,
truncates files. No block may ever have wrong bytes, every cache keeps its configuration, and damage in files that
a start reads is logged and counted.

usage: bit_rot.py CAIRN_SERVER [--rounds N] [--seed N]
"""

import argparse
import json
import os
import pathlib
import random
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "ops"))

import damage  # noqa: E402
from ledger import SHAPE, Tally, block_of  # noqa: E402
from storm import Line  # noqa: E402
from support import Folder, Server  # noqa: E402

CACHES = {
    "both": {"tiers": {"pinned": {"num_blocks": 16}, "disk": {"num_blocks": 64, "codec": "bytes"}}, "offload": "on_commit",
             "default_lease_ms": 12345},
    "deep": {"tiers": {"device": {"num_blocks": 4, "layout": "layer_separate", "block_dim": "second"},
                       "disk": {"num_blocks": 40, "path": "elsewhere/deep.slots"}}},
    "disk": {"tiers": {"disk": {"num_blocks": 96, "codec": "bytes"}}, "offload": "never"},
}
BLOCKS = 24  # blocks in each cache
PAGE = damage.PAGE


def part_of(path):
    """The file's part in cairn_disk_damage_total; None if a start does not read it, or only learns from it."""
    if path.suffix == ".json":
        return "description"
    if "~index" in path.name or "~log." in path.name:
        return "index"
    if "~learnt" in path.name or "~pins" in path.name:
        return None
    if path.parent.name != "snapshots" and "snapshots" not in path.parts and path.name != "lock":
        return "slot_file"
    return None


def used_bytes(path):
    """The length up to the last byte that is not zero: a reserved log is empty after that."""
    return len(path.read_bytes().rstrip(b"\0"))


class Site:
    def __init__(self, program, folder, chance, tally):
        self.program, self.folder, self.chance, self.tally = program, folder, chance, tally
        self.configs = {}
        self.failures = []
        self.server = None
        self.expected, self.recreated = set(), set()  # sets of (part, cache), and of caches

    def start(self):
        (self.folder / "config.json").write_text(json.dumps({"caches": []}))
        self.server = Server(self.program, self.folder, "--config", self.folder / "config.json", "--runtime", "host",
                             "--threads", "1")
        self.line = Line(self.server.address)

    def counted(self, part):
        text = self.line.call("GET", "/metrics")[1].decode()
        return next(float(row.split()[-1]) for row in text.splitlines()
                    if row.startswith(f'cairn_disk_damage_total{{part="{part}"}} '))

    def config_of(self, cache):
        status, body = self.line.call("GET", f"/v1/caches/{cache}")
        if status != 200:
            return None
        keep = {name: body[name] for name in ("layout", "eviction", "offload", "default_lease_ms", "block_bytes")}
        keep["tiers"] = {tier: {name: value for name, value in config.items()
                                if name in ("num_blocks", "layout", "block_dim", "path", "codec", "numa_aware", "device_id")}
                         for tier, config in body["tiers"].items()}
        return keep

    def make(self):
        for cache, body in CACHES.items():
            status, answer = self.line.call("PUT", f"/v1/caches/{cache}", {"layout": SHAPE, **body})
            assert status == 201, answer
            self.configs[cache] = self.config_of(cache)

    def fill(self):
        for cache in CACHES:
            for number in range(BLOCKS):
                data = block_of(cache, f"{number:08x}", 1)
                status, answer = self.line.call("PUT", f"/v1/caches/{cache}/keys/{number:08x}?tier=disk", data)
                assert status in (200, 201), f"{cache} {number}: {status} {answer}"

    def snapshot(self):
        for cache in CACHES:
            self.line.call("DELETE", f"/v1/caches/{cache}/snapshots/kept")
            status, answer = self.line.call("POST", f"/v1/caches/{cache}/snapshots", {"name": "kept"})
            assert status == 202, answer
            answer = self.line.call("GET", f"/v1/transfers/{answer['transfer']}?wait_ms=60000")[1]
            assert answer["state"] == "done", answer

    def compare(self):
        for cache, config in self.configs.items():
            found = self.config_of(cache)
            if found != config:
                self.tally.add("caches gone or with another configuration")
                self.failures.append(f"{cache}: {found}, not {config}")
                continue
            self.tally.add("configurations compared")
            for number in range(BLOCKS):
                path = f"/v1/caches/{cache}/keys/{number:08x}"
                status, data = self.line.call("GET", path)
                if status >= 500:  # the server has dropped the unreadable copy
                    status, data = self.line.call("GET", path)
                self.tally.add({200: "blocks intact", 404: "blocks lost"}.get(status, "other answers"))
                if status == 200 and data != block_of(cache, f"{number:08x}", 1):
                    self.tally.add("blocks with wrong bytes")
                    self.failures.append(f"WRONG BYTES under {number:08x} of {cache}")

    def restore_snapshots(self):
        """Restoring a damaged snapshot may fail with the right code, but never gives wrong bytes."""
        for cache in CACHES:
            status, answer = self.line.call("POST", f"/v1/caches/{cache}/snapshots/kept/restore", {})
            if status == 202:
                answer = self.line.call("GET", f"/v1/transfers/{answer['transfer']}?wait_ms=60000")[1]
                self.tally.add("snapshots restored: " + answer["state"])
            else:
                self.tally.add(f"snapshots refused: {answer.get('code', status)}")

    def kill(self):
        self.server.stop(signal.SIGKILL)

    def files(self):
        data = self.folder / "data"
        return sorted(path for path in data.rglob("*") if path.is_file() and path.stat().st_size > 0)

    def flip(self, path):
        """Flips one to three bits in the used part of a file: what follows a log's records is unused."""
        part = part_of(path)
        if part == "slot_file" and self.chance.random() < 0.5:
            # One of the two pages of the label, near its beginning, where the content is.
            page = self.chance.choice([0, PAGE])
            places = range(page, page + 360)
            self.expected.add((part, self.cache))
        elif part == "slot_file":
            # The slots, that is headers and blocks, which a start does not read.
            places = range(damage.LABEL_BYTES, max(used_bytes(path), damage.LABEL_BYTES + 1))
        else:
            # In a log's head, the end mark and the start time have no checksum: after a flip there the server
            # reads the headers.
            places = [at for at in range(max(used_bytes(path), 1)) if part != "index" or not 64 <= at < 80]
            if part:
                self.expected.add((part, self.cache))
        for place in self.chance.sample(places, min(self.chance.randint(1, 3), len(places))):
            damage.flip_bit(path, place, self.chance)
        self.tally.add(f"flipped: {part or 'other'}")

    def cut(self, path):
        part = part_of(path)
        size = path.stat().st_size
        # A truncated reserved log may still contain all its records, but it counts as damaged because it is too
        # short.
        left = self.chance.choice([0, self.chance.randrange(size), self.chance.randrange(min(size, 64))])
        os.truncate(path, left)
        if part:
            self.expected.add((part, self.cache))
        if part == "slot_file" and left < damage.LABEL_BYTES:
            self.recreated.add(self.cache)
        self.tally.add(f"cut: {part or 'other'}")

    def damage_round(self, number):
        """Damages one file of each kind in turn, each of a different cache, so that the other copies are intact;
        sometimes many at once."""
        self.expected, self.recreated = set(), set()
        for self.cache in CACHES:
            cache = self.cache
            stem = "deep.slots" if cache == "deep" else cache
            # The folder of all slot files is named disk, like one of the caches.
            mine = [path for path in self.files()
                    if path.name == f"{cache}.json" or path.name.split("~")[0] == stem or
                    path.parts[-3:-1] == ("snapshots", cache)]
            # A description and its label are two copies of the same: damage only one of them.
            kinds = {}
            for path in mine:
                kinds.setdefault(part_of(path), []).append(path)
            spared = self.chance.choice(["description", "slot_file"])
            for kind, paths in kinds.items():
                if kind == spared or self.chance.random() < 0.3:
                    continue
                victim = self.chance.choice(paths)
                (self.flip if self.chance.random() < 0.6 else self.cut)(victim)

    def round(self, number):
        self.damage_round(number)
        self.start()
        log = self.server.text()
        # The index of a recreated slot file is not read.
        to_report = {(part, cache) for part, cache in self.expected if part != "index" or cache not in self.recreated}
        for part in {part for part, _ in to_report}:
            counted = self.counted(part)
            wanted = sum(part == of for of, _ in to_report)
            words = {"description": "the description of a remembered cache is damaged",
                     "slot_file": "a part of a disk tier is damaged", "index": "a part of a disk tier is damaged"}
            self.tally.add(f"damage to find: {part}", wanted)
            if counted < wanted or words[part] not in log:
                self.failures.append(f"damage of {part} was not reported: counted {counted} of {wanted}\n{log[-3000:]}")
            else:
                self.tally.add(f"damage reported: {part}", wanted)
        self.compare()
        if number % 5 == 4:
            self.restore_snapshots()
            self.compare()
        self.fill()
        self.snapshot()
        self.kill()
        self.tally.add("rounds")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("server")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.rounds} rounds", flush=True)
    tally = Tally()
    with Folder() as folder:
        site = Site(options.server, folder, random.Random(options.seed), tally)
        site.start()
        site.make()
        site.fill()
        site.snapshot()
        site.kill()
        for number in range(options.rounds):
            try:
                site.round(number)
            except AssertionError as failure:
                site.failures.append(f"{failure!r}\n{site.server.text()[-3000:]}")
            if site.failures:
                site.failures.insert(0, f"in round {number}:")
                break
        site.kill()
    width = max(map(len, tally.counts), default=0)
    for name, count in sorted(tally.counts.items()):
        print(f"{name:{width}} {count:8}")
    print(*site.failures[:8], sep="\n")
    sys.exit(1 if site.failures else 0)


if __name__ == "__main__":
    main()
