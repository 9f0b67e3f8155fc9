"""A connector's options in its engine's configuration. They have the same names for every engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cairn.address import parse_address, token_from
from cairn.client import Client
from cairn.engine.costs import When
from cairn.model import CacheConfig, KvGroup, Shape, TierConfig

DEFAULT_URL = "http://127.0.0.1:7070"
# The sum over all ranks.
DEFAULT_PINNED_BYTES = 4 << 30
NAMES = (
    "cairn.url",
    "cairn.token",
    "cairn.ca",
    "cairn.pinned_bytes",
    "cairn.disk_bytes",
    "cairn.cache",
    "cairn.shared",
    "cairn.codec",
    "cairn.load",
)
CODECS = ("none", "bytes")
LOADS: Mapping[str, When] = {"if_faster": "if_faster", "always": "always"}


class Unsupported(ValueError):
    """A configuration that a connector does not support. Its text says which."""


# The server's limits for a shape: values in a row, and rows.
MAX_ROW_VALUES, MAX_ROWS = 1 << 24, 1 << 16


def flat_shape(block_bytes: int) -> Shape:
    """A shape for blocks whose structure the server need not know, with the fewest rows possible. Raises
    Unsupported if there is none. Values have 2 bytes if that is possible, as most models' have: a codec looks for
    their exponents, and loses nothing if there are two of one byte each."""
    width = value_bytes(block_bytes)
    values = block_bytes // width
    fewest = -(-values // MAX_ROW_VALUES)
    rows = next((rows for rows in range(fewest, MAX_ROWS + 1) if values % rows == 0), None)
    if rows is None:
        raise Unsupported(
            f"a block of {block_bytes} bytes cannot be cut into rows of at most {MAX_ROW_VALUES} values"
        )
    return Shape(1, 1, rows, values // rows, width)


def value_bytes(size: int) -> int:
    """The width of the values in a row of unknown values."""
    return 2 - size % 2


@dataclass(frozen=True)
class Options:
    url: str
    token: str | None = field(repr=False)  # engines log their configuration
    pinned_bytes: int
    disk_bytes: int
    cache: str | None
    ca: str | None = None  # PEM file of CA certificates, if the system's do not suffice
    load: When = "if_faster"  # which of the blocks that were found
    shared: bool = False  # store blocks in the server's shared tier too, for the servers of other hosts
    codec: str = "none"  # how blocks lie there, and on disk

    @staticmethod
    def of(extra: Mapping[str, Any], where: str = "kv_connector_extra_config") -> Options:
        """Reads the options that begin with `cairn.`; the engine uses the others. Engines log their options, so
        the token can also come from CAIRN_TOKEN in the environment, and the CA file from CAIRN_CA. `where` names
        the options in an error. Raises Unsupported for an unknown or wrong option, and WrongArgument for a wrong
        token."""
        unknown = [name for name in extra if name.startswith("cairn.") and name not in NAMES]
        if unknown:
            raise Unsupported(f"{where} has the unknown option {unknown[0]}; the options are {', '.join(NAMES)}")
        try:
            pinned, disk = (int(extra.get(f"cairn.{tier}_bytes") or 0) for tier in ("pinned", "disk"))
        except (TypeError, ValueError):
            pinned = disk = -1
        if pinned < 0 or disk < 0:
            raise Unsupported("cairn.pinned_bytes and cairn.disk_bytes must be sizes in bytes; 0 means none")
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
        shared = _switch(extra, "cairn.shared", default=False)
        codec = str(extra.get("cairn.codec") or "none")
        if codec not in CODECS:
            raise Unsupported(f"cairn.codec must be {' or '.join(CODECS)}, not {codec}")
        load = str(extra.get("cairn.load") or "if_faster")
        if load not in LOADS:
            raise Unsupported(f"cairn.load must be {' or '.join(LOADS)}, not {load}")
        return Options(url, token, pinned, disk, cache or None, ca or None, LOADS[load], shared, codec)

    def client(self, timeout_s: float) -> Client:
        return Client(self.url, self.token, self.ca, timeout_s)

    def cache_config(self, shape: Shape, ranks: int = 1) -> CacheConfig | None:
        """The configuration of one rank's cache; None if an existing cache must be used."""
        if self.cache is not None:
            return None
        tiers = {}
        for tier, size in (("pinned", self.pinned_bytes), ("disk", self.disk_bytes)):
            if size:
                blocks = size // ranks // shape.block_bytes
                if blocks == 0:
                    raise Unsupported(
                        f"cairn.{tier}_bytes={size} holds no block: there are {ranks} ranks, "
                        f"and a block has {shape.block_bytes} bytes"
                    )
                tiers[tier] = TierConfig(blocks, codec=self._codec_of(tier))
        return CacheConfig(shape, tiers, offload=_offload(tiers), shared=self._shared)

    def group_cache_config(self, groups: Sequence[KvGroup], key_tokens: int, ranks: int = 1) -> CacheConfig | None:
        """Like `cache_config`, with KV groups."""
        if self.cache is not None:
            return None
        tiers = {}
        largest = max(group.layout.block_bytes for group in groups)
        for tier, size in (("pinned", self.pinned_bytes), ("disk", self.disk_bytes)):
            if size:
                if size // ranks < largest:
                    raise Unsupported(
                        f"cairn.{tier}_bytes={size} holds no block: there are {ranks} ranks, "
                        f"and the largest block has {largest} bytes"
                    )
                tiers[tier] = TierConfig(size_bytes=size // ranks, codec=self._codec_of(tier))
        return CacheConfig(
            tiers=tiers,
            offload=_offload(tiers),
            shared=self._shared,
            block_tokens=key_tokens,
            kv_groups=list(groups),
        )

    def _codec_of(self, tier: str) -> str | None:
        return self.codec if tier == "disk" and self.codec != "none" else None

    @property
    def _shared(self) -> dict[str, Any] | None:
        """Without a namespace: caches of one name share their blocks."""
        if not self.shared:
            return None
        return {"placement": "values"} | ({} if self.codec == "none" else {"codec": self.codec})


def _offload(tiers: Mapping[str, TierConfig]) -> str | None:
    """Blocks are written through to disk, so that they survive a restart of the server."""
    return "on_commit" if "disk" in tiers else None


def _switch(extra: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """An option that is on or off. In a command line it may be a string."""
    given = extra.get(name, default)
    switches = {"true": True, "false": False}
    if not isinstance(given, bool) and str(given).lower() not in switches:
        raise Unsupported(f"{name} must be true or false, not {given!r}")
    return given if isinstance(given, bool) else switches[str(given).lower()]
