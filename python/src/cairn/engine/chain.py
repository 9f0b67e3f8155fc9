"""The keys of a request's blocks, made as its tokens come."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Sequence

from cairn.keys import words

# What a block's bytes depend on beside its tokens, as JSON has it: images that lie in it, say. None where nothing.
Extra = Callable[[int, int], object]


class KeyChain:
    """A key is SHA-256 of its parent's key, the block's extra and its tokens; the first parent is the root, with
    what holds for the whole request (its salt, its LoRA)."""

    def __init__(self, root: bytes, block_tokens: int, request: object = None) -> None:
        self.keys: list[bytes] = []
        self._block_tokens = block_tokens
        self._last = root if request is None else hashlib.sha256(root + _json(request)).digest()

    def extend(self, tokens: Sequence[int], extra: Extra | None = None) -> list[bytes]:
        """The keys of all full blocks of `tokens`, which are those of the last call and any more."""
        size = self._block_tokens
        for begin in range(len(self.keys) * size, len(tokens) - size + 1, size):
            more = b"" if extra is None or (given := extra(begin, begin + size)) is None else _json(given)
            head = self._last + struct.pack("<I", len(more)) + more
            self._last = hashlib.sha256(head + words(tokens[begin : begin + size])).digest()
            self.keys.append(self._last)
        return self.keys


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
