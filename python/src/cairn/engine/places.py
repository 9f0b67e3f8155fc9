"""Tracks which tiers hold the blocks that an engine knows, from the server's events. For engines that report to
routers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cairn._forks import in_each_child
from cairn.client import Client
from cairn.engine.report import Report
from cairn.errors import CairnError
from cairn.model import Event, Tier

B = TypeVar("B")

# Covers 8,000,000 tokens in blocks of 128 and takes 60 MB here. A block that is forgotten is reported as removed.
MAX_BLOCKS = 1 << 16
# The server sends at least a comment every 15 s.
SILENCE_S = 40.0
PAUSE_S = 1.0


def block_name(key: bytes, kv_group: str | None) -> bytes:
    """Names a block of a KV group. A block of a cache without groups has its key for a name."""
    return key if kv_group is None else kv_group.encode() + b" " + key


@dataclass(eq=False)
class _Block(Generic[B]):
    description: B
    caches: dict[Tier, int] = field(default_factory=dict)  # the caches that hold it, one bit each
    reported: set[Tier] = field(default_factory=set)


@dataclass(frozen=True)
class Changes(Generic[B]):
    """Blocks, each with the tier that now holds it, or no longer does."""

    stored: list[tuple[Tier, B]]
    removed: list[tuple[Tier, B]]


class Places(Generic[B]):
    """A block is in a tier if every cache (one for each rank) has it there. Safe from several threads."""

    def __init__(self, caches: Sequence[str], tiers: Collection[Tier], max_blocks: int = MAX_BLOCKS) -> None:
        self._bits = {cache: 1 << number for number, cache in enumerate(caches)}
        self._all = (1 << len(caches)) - 1
        self._tiers = tiers
        self._max_blocks = max_blocks
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[bytes, _Block[B]] = OrderedDict()  # the one tracked longest is first
        self._changed: dict[_Block[B], None] = {}

    def track(self, keys: Sequence[bytes], describe: Callable[[int], B]) -> None:
        """Reports these blocks, by their names, from now on. `describe` gets the index of each that was not
        tracked."""
        with self._lock:
            for at, key in enumerate(keys):
                if key in self._blocks:
                    self._blocks.move_to_end(key)
                    continue
                self._blocks[key] = _Block(describe(at))
                if len(self._blocks) > self._max_blocks:
                    self._remove(self._blocks.popitem(last=False)[1])

    def stored(self, cache: str, tier: Tier, keys: Iterable[bytes]) -> None:
        bit = self._bits.get(cache)
        if bit is None or tier not in self._tiers:
            return
        with self._lock:
            for block in filter(None, map(self._blocks.get, keys)):
                block.caches[tier] = block.caches.get(tier, 0) | bit
                self._changed[block] = None

    def removed(self, cache: str, tier: Tier, keys: Iterable[bytes]) -> None:
        with self._lock:
            for block in filter(None, map(self._blocks.get, keys)):
                self._remove(block, cache, tier)

    def cleared(self, cache: str, tier: Tier | None) -> None:
        """Without a tier: all tiers."""
        with self._lock:
            for block in self._blocks.values():
                self._remove(block, cache, tier)

    def lost(self) -> None:
        """Forgets all blocks: their places are unknown from now on."""
        with self._lock:
            for block in self._blocks.values():
                self._remove(block)
            self._blocks.clear()

    def take(self) -> Changes[B]:
        """What changed since the last call. A change that was undone is not reported."""
        changes: Changes[B] = Changes([], [])
        with self._lock:
            changed, self._changed = self._changed, {}
            for block in changed:
                here = {tier for tier, bits in block.caches.items() if bits == self._all}
                changes.stored.extend((tier, block.description) for tier in sorted(here - block.reported))
                changes.removed.extend((tier, block.description) for tier in sorted(block.reported - here))
                block.reported = here
        return changes

    def _remove(self, block: _Block[B], cache: str | None = None, tier: Tier | None = None) -> None:
        """Without a cache: all caches. Without a tier: all tiers."""
        bits = self._all if cache is None else self._bits.get(cache, 0)
        for one in block.caches if tier is None else (tier,):
            block.caches[one] = block.caches.get(one, 0) & ~bits
        self._changed[block] = None


class Follower:
    """Updates places from the server's events, on its own thread."""

    def __init__(self, client: Client, places: Places[B], report: Report) -> None:
        self._client = client
        self._places = places
        self._report = report
        self._closed = threading.Event()
        in_each_child(self._stay_closed)
        # Daemon, so that waiting for the server does not keep the process from ending.
        threading.Thread(target=self._run, name="cairn-events", daemon=True).start()

    def close(self) -> None:
        """The thread ends when the server next sends something."""
        self._closed.set()

    def _stay_closed(self) -> None:
        """A forked child must not report: routers would take its reports for the engine's."""
        self._closed = threading.Event()
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                for event in self._client.events(silence_s=SILENCE_S):
                    if self._closed.is_set():
                        return
                    self._apply(event)
            except CairnError as error:
                self._report.warn(f"the connection to the server's events failed: {error}")
            except Exception:
                self._report.failed("reading the server's events failed")
            # The server does not repeat the events that were missed.
            self._places.lost()
            self._closed.wait(PAUSE_S)

    def _apply(self, event: Event) -> None:
        data = event.data
        if event.kind in ("stored", "removed"):
            group = data.get("kv_group")
            names = [block_name(bytes.fromhex(key), group) for key in data["keys"]]
            change = self._places.stored if event.kind == "stored" else self._places.removed
            change(data["cache"], data["tier"], names)
        elif event.kind == "cleared":
            self._places.cleared(data["cache"], data["tier"])
        elif event.kind == "gap":
            self._places.lost()
