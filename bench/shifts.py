"""How far an eviction order may fall behind LRU when the workload shifts. Synthetic requests of eight kinds, whose
two halves alternately want different blocks, run through cairn-replay with caches of three sizes. By hand: python3
-B bench/shifts.py build/release/cairn-replay [--seeds 6]

Prints the hit rate with LRU, and how much more class_hazard and adaptive find, for each run in which adaptive
finds less; and the mean and the worst of all runs.
"""

import argparse
import json
import pathlib
import random
import subprocess
import tempfile

REQUESTS = 12_000
PROMPT_BLOCKS = 10
PHASES = (300, 1_000, 3_000, 10_000)  # requests between two shifts
CAPACITIES = (300, 1_000, 3_000)
REQUEST_MS = 500
SHORT, MEDIUM, LONG = 20, 100, 500  # output tokens


class Shifting:
    """Requests of one kind in two halves, which `first` distinguishes."""

    def __init__(self, kind, phase, capacity, seed):
        self.random = random.Random(f"{kind} {phase} {capacity} {seed}")
        self.phase = phase
        self.prompts = capacity // PROMPT_BLOCKS  # that fit into the cache
        self.kind = getattr(self, kind)
        self.next_block = 0
        self.requests = []
        self.past = []
        self.due = {}
        self.loop = self.some(1.3)
        self.set = self.some(0.7)
        self.popular = self.some(0.5)
        self.fitting = self.some(0.95)

    def fresh(self):
        self.next_block += PROMPT_BLOCKS
        return list(range(self.next_block - PROMPT_BLOCKS, self.next_block))

    def some(self, of_capacity):
        return [self.fresh() for _ in range(int(self.prompts * of_capacity))]

    def ask(self, blocks, output=MEDIUM):
        self.requests.append(
            {
                "timestamp": REQUEST_MS * (len(self.requests) + 1),
                "input_length": 512 * len(blocks),
                "output_length": output,
                "hash_ids": blocks,
            }
        )

    def ask_new(self, output=MEDIUM):
        self.past.append((self.fresh(), output))
        self.ask(*self.past[-1])

    def ask_again(self, of_capacity, number):
        """Every second request repeats a prompt from that many capacities ago."""
        back = int(self.prompts * of_capacity)
        if number % 2 == 0 or len(self.past) <= back:
            return False
        self.ask(*self.past[-back])
        return True

    def popular_in_a_scan(self, share):
        self.ask(self.random.choice(self.popular) if self.random.random() < share else self.fresh())

    def all(self):
        number = 0
        while len(self.requests) < REQUESTS:
            self.kind((len(self.requests) // self.phase) % 2 == 0, number)
            number += 1
        return self.requests

    def loop_then_set(self, first, number):
        self.ask(self.loop[number % len(self.loop)] if first else self.random.choice(self.set))

    def short_then_long_outputs(self, first, number):
        back = int(self.prompts * 1.2)
        if number % 2 and len(self.past) >= back and (self.past[-back][1] == SHORT) == first:
            return self.ask(*self.past[-back])
        return self.ask_new(SHORT if self.random.random() < 0.4 else LONG)

    def often_then_once(self, first, number):
        if first:
            self.popular_in_a_scan(0.5)
        elif not self.ask_again(0.8, number):
            self.ask_new()

    def scan_then_thrice(self, first, number):
        if first:
            return self.popular_in_a_scan(0.4)
        blocks, left = self.due.pop(number, (None, 2))
        self.ask(blocks or self.fresh())
        if left > 0:
            self.due[number + int(self.prompts * 0.8)] = (self.requests[-1]["hash_ids"], left - 1)
        return None

    def fitting_then_scan(self, first, number):
        if not first:
            return self.popular_in_a_scan(0.4)
        self.ask(self.fitting[number % len(self.fitting)])
        if number % (5 * len(self.fitting)) == 5 * len(self.fitting) - 1:
            self.fitting = self.some(0.95)
        return None

    def moving_set_then_loop(self, first, number):
        if not first:
            return self.ask(self.loop[number % len(self.loop)] if self.random.random() < 0.5 else self.fresh())
        if self.random.random() < 0.1:
            self.popular[self.random.randrange(len(self.popular))] = self.fresh()
        return self.ask(self.random.choice(self.popular))

    def soon_then_late(self, first, number):
        if not self.ask_again(0.3 if first else 0.9, number):
            self.ask_new(300 if first else SHORT)

    def never_then_again(self, first, number):
        if first:
            self.ask(self.fresh(), SHORT)
        elif not self.ask_again(0.9, number):
            self.ask_new(SHORT)


KINDS = (
    "loop_then_set",
    "short_then_long_outputs",
    "often_then_once",
    "scan_then_thrice",
    "fitting_then_scan",
    "moving_set_then_loop",
    "soon_then_late",
    "never_then_again",
)


def hit_rates(replay, requests, capacity):
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "trace.jsonl"
        trace.write_text("".join(json.dumps(request) + "\n" for request in requests))
        command = [replay, "--simulate", "--trace", trace, "--capacity", str(capacity)]
        command += ["--policy", "lru,class_hazard,adaptive"]
        table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in table.splitlines()]
    rates = {row[0]: float(row[1]) for row in rows if len(row) == 2}
    return rates["lru"], rates["class_hazard"] - rates["lru"], rates["adaptive"] - rates["lru"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("replay")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--all", action="store_true", help="print every run")
    args = parser.parse_args()
    order, adaptive = [], []
    print(f"{'kind':24} {'phase':>6} {'blocks':>6} {'lru':>6} {'class_hazard':>13} {'adaptive':>9}")
    for seed in range(1, args.seeds + 1):
        for kind in KINDS:
            for phase in PHASES:
                for capacity in CAPACITIES:
                    requests = Shifting(kind, phase, capacity, seed).all()
                    lru, more, adapted = hit_rates(args.replay, requests, capacity)
                    order.append(more)
                    adaptive.append(adapted)
                    if adapted < 0 or args.all:
                        print(
                            f"{kind:24} {phase:6} {capacity:6} {lru:6.2f} {more:+13.2f} {adapted:+9.2f}", flush=True
                        )
    for name, gains in (("class_hazard", order), ("adaptive", adaptive)):
        below = sum(gain < -1 for gain in gains)
        print(
            f"{name}: {len(gains)} runs, {sum(gains) / len(gains):+.2f} points in the mean, {min(gains):+.2f} at worst, "
            f"{below} more than a point below lru"
        )


if __name__ == "__main__":
    main()
