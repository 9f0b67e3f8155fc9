"""Names of blocks and of caches, derived from everything that a block's bytes depend on.

Two engines share blocks if and only if all of that is equal. Nothing in it depends on a process, a host or a
restart.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cairn.keys import words

# Change this whenever the byte order of a block or the way keys are made changes, so that old blocks are no longer
# found.
FORMAT = "cairn-engine-1"
# A cache's name has at most 64 characters: part of the model's name, 16 digits of the digest, and the rank.
MODEL_CHARACTERS = 20

# What the block of tokens [begin, end) depends on besides its tokens, for example images, as JSON; None if there
# is nothing.
Extra = Callable[[int, int], object]


@dataclass(frozen=True)
class Rank:
    """A worker's position among those that each hold a part of every block."""

    tensor: int = 0
    tensor_size: int = 1
    pipeline: int = 0
    pipeline_size: int = 1

    @property
    def label(self) -> str:
        return f"tp{self.tensor}of{self.tensor_size}.pp{self.pipeline}of{self.pipeline_size}"


class Identity:
    def __init__(self, model: str, facts: Mapping[str, object]) -> None:
        """facts: everything that two engines must agree on to share blocks, as JSON."""
        self._model = model
        text = json.dumps({"format": FORMAT, "model": model, **facts}, sort_keys=True, separators=(",", ":"))
        self.root = hashlib.sha256(text.encode()).digest()

    def cache_name(self, rank: Rank, heads: int | None = None) -> str:
        """heads: of the whole model, if all tensor ranks share the cache."""
        label = f"kv{heads}.pp{rank.pipeline}of{rank.pipeline_size}" if heads else rank.label
        model = re.sub(r"[^A-Za-z0-9_-]+", "-", self._model.rstrip("/").rsplit("/", 1)[-1])
        return f"{model[:MODEL_CHARACTERS]}.{self.root.hex()[:16]}.{label}"


def all_ranks(tensor_size: int, pipeline_size: int) -> list[Rank]:
    """The ranks that must all hold a prefix before it can be loaded."""
    return [
        Rank(tensor, tensor_size, stage, pipeline_size)
        for stage in range(pipeline_size)
        for tensor in range(tensor_size)
    ]


class KeyChain:
    """The keys of a request's blocks. A key is SHA-256 of the parent's key, the block's extra and its tokens. The
    first parent is the root, combined with what applies to the whole request (its salt, its LoRA)."""

    def __init__(self, root: bytes, block_tokens: int, request: object = None) -> None:
        self.keys: list[bytes] = []
        self._block_tokens = block_tokens
        self._last = root if request is None else hashlib.sha256(root + _json(request)).digest()

    def extend(self, tokens: Sequence[int], extra: Extra | None = None) -> list[bytes]:
        """Returns the keys of all full blocks of `tokens`, which are the tokens of the last call, possibly with
        more."""
        size = self._block_tokens
        for begin in range(len(self.keys) * size, len(tokens) - size + 1, size):
            more = b"" if extra is None or (given := extra(begin, begin + size)) is None else _json(given)
            head = self._last + struct.pack("<I", len(more)) + more
            self._last = hashlib.sha256(head + words(tokens[begin : begin + size])).digest()
            self.keys.append(self._last)
        return self.keys


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
