"""What a connector is told by its engine's configuration, the same names for every engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cairn.address import parse_address, token_from
from cairn.client import Client
from cairn.model import CacheConfig, Shape, TierConfig

DEFAULT_URL = "http://127.0.0.1:7070"
# Of all ranks together.
DEFAULT_PINNED_BYTES = 4 << 30
NAMES = ("cairn.url", "cairn.token", "cairn.ca", "cairn.pinned_bytes", "cairn.disk_bytes", "cairn.cache")


class Unsupported(ValueError):
    """Something that a connector does not do. Its text names it."""


# The most values in a row of a block that the server takes, and the most rows.
MAX_ROW_VALUES, MAX_ROWS = 1 << 24, 1 << 16


def flat_shape(block_bytes: int) -> Shape:
    """Of blocks whose bytes mean nothing to the server: in as few rows as it takes."""
    fewest = -(-block_bytes // MAX_ROW_VALUES)
    rows = next((rows for rows in range(fewest, MAX_ROWS + 1) if block_bytes % rows == 0), None)
    if rows is None:
        raise Unsupported(f"blocks of {block_bytes} bytes cannot be cut into rows of {MAX_ROW_VALUES} at most")
    return Shape(1, 1, rows, block_bytes // rows, 1)


@dataclass(frozen=True)
class Options:
    url: str
    token: str | None = field(repr=False)  # engines log what they are told
    pinned_bytes: int
    disk_bytes: int
    cache: str | None
    ca: str | None = None  # of the authority that signed the server's certificate, where the system has it not

    @staticmethod
    def of(extra: Mapping[str, Any], where: str = "kv_connector_extra_config") -> Options:
        """Of the names that begin with `cairn.`; the others are the engine's. Engines log their options, so that
        a token may be given as CAIRN_TOKEN in the environment too, and the authority as CAIRN_CA."""
        unknown = [name for name in extra if name.startswith("cairn.") and name not in NAMES]
        if unknown:
            raise Unsupported(f"{where} has {unknown[0]}; there are {', '.join(NAMES)}")
        try:
            pinned, disk = (int(extra.get(f"cairn.{tier}_bytes") or 0) for tier in ("pinned", "disk"))
        except (TypeError, ValueError):
            pinned = disk = -1
        if pinned < 0 or disk < 0:
            raise Unsupported("cairn.pinned_bytes and cairn.disk_bytes are sizes in bytes, 0 for none")
        if not pinned and not disk:
            pinned = DEFAULT_PINNED_BYTES
        token = token_from(extra.get("cairn.token"), "cairn.token")
        token = token or token_from(os.environ.get("CAIRN_TOKEN"), "CAIRN_TOKEN")
        ca = extra.get("cairn.ca") or os.environ.get("CAIRN_CA")
        url, cache = str(extra.get("cairn.url") or DEFAULT_URL), extra.get("cairn.cache")
        try:
            parse_address(url)
        except ValueError as error:
            raise Unsupported(f"cairn.url: {error}") from None
        return Options(url, token, pinned, disk, cache or None, ca or None)

    def client(self, timeout_s: float) -> Client:
        return Client(self.url, self.token, self.ca, timeout_s)

    def cache_config(self, shape: Shape, ranks: int = 1) -> CacheConfig | None:
        """The cache of one of `ranks` ranks; None where one that is there is to be taken."""
        if self.cache is not None:
            return None
        tiers = {}
        for tier, size in (("pinned", self.pinned_bytes), ("disk", self.disk_bytes)):
            if size:
                blocks = size // ranks // shape.block_bytes
                if blocks == 0:
                    raise Unsupported(
                        f"cairn.{tier}_bytes={size} holds no block: {ranks} ranks' blocks "
                        f"have {shape.block_bytes} bytes each"
                    )
                tiers[tier] = TierConfig(blocks)
        # What is on disk outlives the server, so that its restart costs no block.
        return CacheConfig(shape, tiers, offload="on_commit" if "disk" in tiers else None)
