"""A store that is opened when it is needed, again after the server's restart, and left alone while silent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from cairn.client import Client
from cairn.engine.breaker import Breaker
from cairn.engine.options import Unsupported
from cairn.engine.report import Report
from cairn.engine.store import Store, WrongBlocks, open_store
from cairn.errors import CacheExists, CairnError, NoAnswer, Refused, UnknownCache, is_silence
from cairn.model import CacheConfig

T = TypeVar("T")

TOO_MANY_REQUESTS = 429
TIMEOUT_S = 5.0  # of each request of a load or a save
# How long a load waits for blocks that come up from the disk; what has not come by then is read as it lies.
ONBOARD_WAIT_MS = 5_000


class Access:
    """Safe from several threads. `open_store` makes or finds the cache."""

    def __init__(self, open_store: Callable[[], Store], report: Report) -> None:
        self._open_store = open_store
        self._report = report
        self._breaker = Breaker(time.monotonic)
        self._store: Store | None = None

    @property
    def is_silent(self) -> bool:
        """Whether the server did not answer when it was last asked."""
        return self._breaker.is_silent

    def open(self) -> None:
        """Opens the store now, so that a refusal is known at the engine's start. A server that does not answer, or
        starts itself, is asked again when it is needed."""
        try:
            self.use(lambda store: None)
        except CairnError as error:
            if isinstance(error, Refused) and error.status == TOO_MANY_REQUESTS:
                self._report.warn(f"the server is busy: {error}")
            elif not is_silence(error):
                raise

    def use(self, act: Callable[[Store], T]) -> T:
        """Acts on the store. Raises what that raises, and NoAnswer at once where the server was silent a moment
        ago."""
        self.check()
        try:
            try:
                done = act(self._opened())
            except UnknownCache:
                # The server was started again and has no such cache.
                self._store = None
                done = act(self._opened())
        except CairnError as error:
            self.failed(error)
            raise
        if self._breaker.answered():
            self._report.note("the server answers again")
        return done

    def check(self) -> None:
        """NoAnswer where the server is not to be asked yet."""
        if not self._breaker.may_ask():
            raise NoAnswer("the server did not answer a moment ago")

    def failed(self, error: CairnError) -> None:
        """What was begun on the store has ended so."""
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
) -> Access:
    """The cache of that name and shape, made where it is not there; with no `config` one that is. Unsupported
    where what is there does not suit, or the server refuses it."""

    def open_here() -> Store:
        return open_store(client, cache, config, ONBOARD_WAIT_MS, block_bytes, adopt)

    access = Access(open_here, report)
    try:
        access.open()
    except CacheExists as error:
        raise Unsupported(f"the server has a cache {cache} of another shape or size: {error.detail}") from error
    except WrongBlocks as error:
        raise Unsupported(str(error)) from error
    except Refused as error:
        raise Unsupported(f"the server refused the cache {cache}: {error}") from error
    report.note(f"blocks of {block_bytes} bytes go to the cache {cache} of {client.url}")
    return access
