"""Which chunks of a request exist, for models whose layers do not all remember the same.

vLLM asks for each chunk of each KV cache group by itself: of full groups from the beginning of the prompt on, of
windows and states from its end. The server answers for chunks that follow one another. Of a window or a state few
chunks exist, and of a prompt's new part none, so what lies behind the stored prefix is not asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from cairn.engine.buffer_store import over_gaps

# vLLM's keys end with the number of the group.
GROUP_BYTES = 4
# The most requests for one window or state; then the rest counts as missing. Each missing chunk takes one, of a
# fraction of a millisecond, beside vLLM's own work. Computing a chunk takes longer.
MAX_REQUESTS = 256
# The number of chunks in a request. Windows are rarely longer.
CHUNKS_A_REQUEST = 32


def group_of(key: bytes) -> bytes:
    return key[-GROUP_BYTES:]


def existing_chunks(
    keys: Sequence[bytes],
    end_of: Callable[[bytes], int | None],
    chunk_tokens: Mapping[bytes, int],
    prefix: Callable[[Sequence[bytes]], int],
) -> list[bool]:
    """Which of a request's chunks exist. A chunk that no prefix can use may count as missing.

    end_of: the number of tokens up to the end of a chunk, if it is known.
    chunk_tokens: the length of a chunk by group.
    prefix: asks the server how many of some chunks exist, until one is missing.
    """
    there = [False] * len(keys)
    groups: dict[bytes, list[int]] = {}
    for at, key in enumerate(keys):
        groups.setdefault(group_of(key), []).append(at)
    ends = [end_of(key) for key in keys]

    reach = math.inf  # how far the full groups reach, in tokens
    windows = []
    for group, places in groups.items():
        first, last = ends[places[0]], ends[places[-1]]
        if first is None or last is None or last <= first:
            windows.append((group, places))
            continue
        found = _each([keys[at] for at in places], prefix)
        for at, here in zip(places, found, strict=True):
            there[at] = here
        hits = found.index(False) if False in found else len(found)
        end = ends[places[hits - 1]] if hits else first - chunk_tokens.get(group, 0)
        reach = min(reach, math.inf if end is None else end)
    for group, places in windows:
        # A window's last chunk may begin within the prefix and end behind it.
        begins = {at: (ends[at] or 0) - chunk_tokens.get(group, 0) for at in places}
        left = [at for at in places if begins[at] < reach]
        for _ in range(MAX_REQUESTS):
            if not left:
                break
            asked = left[:CHUNKS_A_REQUEST]
            hits = prefix([keys[at] for at in asked])
            for at in asked[:hits]:
                there[at] = True
            left = left[hits + (hits < len(asked)) :]
    return there


def _each(keys: Sequence[bytes], prefix: Callable[[Sequence[bytes]], int]) -> list[bool]:
    return over_gaps(len(keys), lambda begin: prefix(keys[begin:]))
