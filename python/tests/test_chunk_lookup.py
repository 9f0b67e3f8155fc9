"""Which chunks of models with several groups are found, compared with what vLLM would find if it knew them all."""

from __future__ import annotations

import random
import unittest
from collections.abc import Mapping, Sequence

from cairn.engine.buffer_store import MAX_GAPS
from cairn.vllm.chunk_lookup import MAX_REQUESTS, existing_chunks

FULL, WINDOW, STATE = (number.to_bytes(4, "big") for number in range(3))


def key(group: bytes, end: int) -> bytes:
    return end.to_bytes(4, "big") + group


def end_of(name: bytes) -> int:
    return int.from_bytes(name[:4], "big")


def hit(there: Mapping[bytes, bool], tokens: int, chunk: int, window_chunk: int, window: int) -> int:
    """The tokens that vLLM loads: the longest prefix of whole chunks of the full group that all groups serve. The
    first chunks of the prompt are those that its own cache lacks."""
    for length in range(tokens // chunk * chunk, 0, -chunk):
        full = all(there.get(key(FULL, end), False) for end in range(chunk, length + 1, chunk))
        last = -(-length // window_chunk) * window_chunk
        first = max(last - window * window_chunk, 0)
        windows = all(there.get(key(WINDOW, end), False) for end in range(last, first, -window_chunk))
        if full and windows and there.get(key(STATE, length), False):
            return length
    return 0


class ChunkLookups(unittest.TestCase):
    def found(self, stored: set[bytes], keys: Sequence[bytes], chunks: Mapping[bytes, int]) -> dict[bytes, bool]:
        self.requests = 0

        def prefix(names: Sequence[bytes]) -> int:
            self.requests += 1
            return next((at for at, one in enumerate(names) if one not in stored), len(names))

        return dict(zip(keys, existing_chunks(keys, end_of, chunks, prefix), strict=True))

    def asked(self, tokens: int, chunk: int, window_chunk: int) -> list[bytes]:
        """In vLLM's order."""
        full = [key(FULL, end) for end in range(chunk, tokens + 1, chunk)]
        window = [key(WINDOW, end) for end in range(window_chunk, tokens + window_chunk, window_chunk)]
        states = [key(STATE, end) for end in range(chunk, tokens + 1, chunk)]
        return [*full, *reversed(window), *reversed(states)]

    def test_hits_are_those_of_all_chunks(self) -> None:
        values = random.Random(1)
        hits = 0
        for _ in range(500):
            chunk, window_chunk, window = 32, values.choice((16, 32, 64)), values.randrange(1, 4)
            tokens = values.randrange(1, 40 * chunk)
            keys = self.asked(tokens, chunk, window_chunk)
            # Prompts that share the beginning of this one, each with its pages, its last window and its state.
            stored: set[bytes] = set()
            for _ in range(values.randrange(4)):
                end = values.randrange(40) * chunk
                last = -(-end // window_chunk) * window_chunk
                stored |= {key(FULL, at) for at in range(chunk, end + 1, chunk)} | {key(STATE, end)}
                stored |= {key(WINDOW, max(last - at * window_chunk, 0)) for at in range(window)}
            stored -= set(values.sample(keys, len(keys) // 50))
            found = self.found(stored, keys, {FULL: chunk, WINDOW: window_chunk, STATE: chunk})
            self.assertTrue(all(one in stored for one, here in found.items() if here))
            shape = (tokens, chunk, window_chunk, window)
            self.assertEqual(hit(found, *shape), hit({one: one in stored for one in keys}, *shape))
            hits += hit(found, *shape) > 0
        self.assertGreater(hits, 100)

    def test_a_long_new_part_costs_few_requests(self) -> None:
        keys = self.asked(100 * 32, 32, 32)
        stored = {key(FULL, end) for end in range(32, 20 * 32 + 1, 32)}
        stored |= {key(WINDOW, 19 * 32), key(WINDOW, 20 * 32), key(STATE, 20 * 32)}
        found = self.found(stored, keys, dict.fromkeys((FULL, WINDOW, STATE), 32))
        self.assertEqual({one for one, here in found.items() if here}, stored)
        self.assertLess(self.requests, MAX_GAPS + 2 * 21)

    def test_chunks_without_a_place_are_looked_up(self) -> None:
        keys = [key(group, 32) for group in (FULL, WINDOW)]
        self.assertEqual(existing_chunks(keys, lambda _: None, {}, len), [True, True])

    def test_requests_are_limited(self) -> None:
        keys = self.asked(1000 * 32, 32, 32)
        stored = {key(FULL, end) for end in range(32, 1000 * 32 + 1, 32)} | {key(STATE, 32)}
        found = self.found(stored, keys, dict.fromkeys((FULL, WINDOW, STATE), 32))
        self.assertFalse(found[key(STATE, 32)])
        self.assertEqual(self.requests, 1 + 2 * MAX_REQUESTS)


if __name__ == "__main__":
    unittest.main()
