"""The kinds of a model's layers, and which of their blocks a prefix needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Group:
    """Layers of a model that need the same earlier blocks. In the engine they have a block table of their own.

    kind: `full`, `window` or `state`, as in `cairn.KvGroup`.
    window_tokens: a token of a window attends to itself and to the `window_tokens` - 1 tokens before it.
    in_chunks: a token attends only to the part of its window that lies in the same run of `window_tokens` tokens.
    """

    name: str
    kind: Literal["full", "window", "state"]
    block_tokens: int
    window_tokens: int = 0
    in_chunks: bool = False

    def needed(self, tokens: int) -> range:
        """The indices of the engine's blocks that the token after a prefix of `tokens` tokens needs."""
        end = -(-tokens // self.block_tokens)
        if self.kind == "full":
            return range(end)
        if self.kind == "state":
            return range(max(end - 1, 0), end)
        if self.in_chunks:
            return range(tokens // self.window_tokens * self.window_tokens // self.block_tokens, end)
        return range(max(tokens - self.window_tokens + 1, 0) // self.block_tokens, end)


@dataclass(frozen=True)
class Groups:
    """The groups of a model, in the order of their numbers. At least one is full or a state."""

    groups: Sequence[Group]
    key_tokens: int  # that a key names; divides the `block_tokens` of each group

    @staticmethod
    def of(groups: Sequence[Group]) -> Groups:
        return Groups(groups, math.gcd(*(group.block_tokens for group in groups)))

    @property
    def unit_tokens(self) -> int:
        """Engines resume prompts at multiples of this."""
        return math.lcm(*(group.block_tokens for group in self.groups))

    @property
    def unit_keys(self) -> int:
        return self.unit_tokens // self.key_tokens

    def key_at(self, tokens: int) -> int:
        """The index of the key that ends after `tokens` tokens."""
        return tokens // self.key_tokens - 1

    def key_of(self, group: int, block: int) -> int:
        """The index of the key of a group's whole block."""
        return self.key_at((block + 1) * self.groups[group].block_tokens)

    def needed_bytes(self, tokens: int, block_bytes: Mapping[str | None, int]) -> int:
        """The bytes of all blocks that the token after a prefix needs. block_bytes: by the groups' names."""
        return sum(len(group.needed(tokens)) * block_bytes[group.name] for group in self.groups)
