"""Access to a store: opens it when it is needed, reopens it after the server's restart, and pauses while the
server does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from cairn._forks import in_each_child
from cairn.client import Client
from cairn.engine.options import Unsupported
from cairn.engine.report import Report
from cairn.engine.store import Part, Store, WrongBlocks, open_group_store, open_store
from cairn.errors import CacheExists, CairnError, NoAnswer, Refused, UnknownCache, is_silence
from cairn.model import CacheConfig, KvGroup

T = TypeVar("T")

TOO_MANY_REQUESTS = 429
TIMEOUT_S = 5.0  # of each request that loads or saves blocks
# How long a load waits for blocks that come up from disk. The load then reads the remaining blocks over HTTP.
ONBOARD_WAIT_MS = 5_000
FIRST_PAUSE_S = 0.5
# After a server's restart, look-ups find it within this time, and loads within twice this time.
LONGEST_PAUSE_S = 2.0


class Breaker:
    """A circuit breaker. After a failure nobody asks the server for a while, and twice as long after each further
    one; then one caller asks, and its answer decides. Safe from several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._ask_at = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether the last request got no answer."""
        with self._lock:
            return self._pause_s > 0.0

    def may_ask(self) -> bool:
        with self._lock:
            if self._pause_s == 0.0:
                return True
            now = self._clock()
            if now < self._ask_at:
                return False
            self._ask_at = now + self._pause_s  # until this request's answer, no other one is sent
            return True

    def answered(self) -> bool:
        """Records an answer. Returns True if the request before it got none."""
        with self._lock:
            was_silent, self._pause_s = self._pause_s > 0.0, 0.0
            return was_silent

    def silent(self) -> bool:
        """Records that no answer came. Returns True if the request before it got one."""
        with self._lock:
            first = self._pause_s == 0.0
            self._pause_s = min(max(self._pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            self._ask_at = self._clock() + self._pause_s
            return first


class Access:
    """A store that is opened when it is needed. Safe from several threads."""

    def __init__(self, open_store: Callable[[], Store], report: Report) -> None:
        """open_store: makes or finds the cache."""
        self._open_store = open_store
        self._report = report
        self._breaker = Breaker(time.monotonic)
        self._store: Store | None = None

    @property
    def is_silent(self) -> bool:
        """Whether the server did not answer the last request."""
        return self._breaker.is_silent

    def open(self) -> None:
        """Opens the store now, so that the engine's start fails if the server refuses the cache. If the server
        does not answer, or is starting, it is asked again when the store is needed."""
        try:
            self.use(lambda store: None)
        except CairnError as error:
            if isinstance(error, Refused) and error.status == TOO_MANY_REQUESTS:
                self._report.warn(f"the server is busy: {error}")
            elif not is_silence(error):
                raise

    def use(self, act: Callable[[Store], T]) -> T:
        """Returns `act(store)`. Raises what `act` raises, and NoAnswer at once if the server did not answer a
        moment ago."""
        self.check()
        try:
            try:
                done = act(self._opened())
            except UnknownCache:
                # The server restarted without this cache.
                self._store = None
                done = act(self._opened())
        except CairnError as error:
            self.failed(error)
            raise
        if self._breaker.answered():
            self._report.info("the server answers again")
        return done

    def check(self) -> None:
        """Raises NoAnswer if the server may not be asked yet."""
        if not self._breaker.may_ask():
            raise NoAnswer("the server did not answer a moment ago")

    def failed(self, error: CairnError) -> None:
        """Records an error of an operation that began with `use`."""
        if is_silence(error) and self._breaker.silent():
            self._report.warn(f"the server does not answer: {error}")

    def _opened(self) -> Store:
        store = self._store
        if store is None:
            store = self._open_store()
            self._store = store
        return store


def open_access(
    client: Client,
    cache: str,
    config: CacheConfig | None,
    block_bytes: int,
    report: Report,
    adopt: Callable[[memoryview], None] | None = None,
    part: Part | None = None,
) -> Access:
    """Opens the cache `cache`, which is made from `config` if it does not exist; without a `config` it must exist.
    `adopt` is called with the tier's memory whenever it is mapped. `part`: of each block, if `block_bytes` are those
    of a part. Raises Unsupported if the server refuses the
    cache, or has one whose blocks are different."""

    def open_here() -> Store:
        return open_store(client, cache, config, ONBOARD_WAIT_MS, block_bytes, adopt, part)

    access = _opened(cache, open_here, report)
    report.info(f"using the cache {cache} of {client.url}; a block has {block_bytes} bytes")
    return access


def open_group_access(
    client: Client,
    cache: str,
    config: CacheConfig | None,
    groups: Sequence[KvGroup],
    key_tokens: int,
    report: Report,
    adopt: Callable[[memoryview], None] | None = None,
) -> Access:
    """Like `open_access`, for a cache with these KV groups."""

    def open_here() -> Store:
        return open_group_store(client, cache, config, ONBOARD_WAIT_MS, groups, key_tokens, adopt)

    access = _opened(cache, open_here, report)
    sizes = ", ".join(f"{group.layout.block_bytes} of {group.name}" for group in groups)
    report.info(f"using the cache {cache} of {client.url}; the bytes of a block: {sizes}")
    return access


def _opened(cache: str, open_here: Callable[[], Store], report: Report) -> Access:
    access = Access(open_here, report)
    try:
        access.open()
    except CacheExists as error:
        raise Unsupported(f"the server has a cache {cache} with another shape or size: {error.detail}") from error
    except WrongBlocks as error:
        raise Unsupported(str(error)) from error
    except Refused as error:
        raise Unsupported(f"the server refused the cache {cache}: {error}") from error
    return access
