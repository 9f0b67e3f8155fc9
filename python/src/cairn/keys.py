"""Keys for blocks of tokens, computed as the server does for `match_tokens`."""

from __future__ import annotations

import array
import hashlib
import sys
from collections.abc import Sequence


def token_keys(tokens: Sequence[int], page_size: int, salt: str | None = None) -> list[bytes]:
    """Returns the keys of the full blocks of `page_size` tokens. A key is SHA-256 of the parent's key followed by
    the block's tokens as little-endian u32. The first block's parent is empty, or SHA-256 of `salt` if that is
    given."""
    parent = b"" if salt is None else hashlib.sha256(salt.encode()).digest()
    keys: list[bytes] = []
    for begin in range(0, len(tokens) - page_size + 1, page_size):
        parent = hashlib.sha256(parent + words(tokens[begin : begin + page_size])).digest()
        keys.append(parent)
    return keys


def words(tokens: Sequence[int]) -> bytes:
    """Tokens as little-endian u32."""
    values = array.array("I", tokens)
    if sys.byteorder != "little":
        values.byteswap()
    return values.tobytes()
