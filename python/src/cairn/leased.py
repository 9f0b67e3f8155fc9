"""Answers that hold blocks under a lease, which a `with` statement releases."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, TypeVar

from cairn.errors import CairnError, ForeignLease, LeaseExpired, UnknownLease

T = TypeVar("T", covariant=True)
L = TypeVar("L", bound="Leased")

# With these refusals the server says that the lease has ended. After any other error it is still alive.
ENDED = (UnknownLease, LeaseExpired, ForeignLease)


class Leased:
    """The base class of answers with a `lease`.

        with client.match("llama", keys) as hit:
            use(hit.blocks)

    The end of the block releases the lease, if there is one. It is not renewed: the block must end within the
    lease's time. If an asyncio client gave the answer, use `async with`. There, `await` may be left out.
    """

    lease: str | None
    _release: Callable[[str], Any] | None = None  # of the client that asked

    def released_by(self: L, release: Callable[[str], Any]) -> L:
        """This answer, which a `with` statement ends by `release`."""
        object.__setattr__(self, "_release", release)
        return self

    def __enter__(self: L) -> L:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.lease is None or self._release is None:
            return
        try:
            self._release(self.lease)
        except CairnError as error:
            _unless_known(error, raised)

    async def __aenter__(self: L) -> L:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.lease is None or self._release is None:
            return
        try:
            await self._release(self.lease)
        except CairnError as error:
            _unless_known(error, raised)


def _unless_known(error: CairnError, raised: BaseException | None) -> None:
    """Raises `error`, unless the lease has ended or the caller learns of `raised`."""
    if raised is None and not isinstance(error, ENDED):
        raise error


class Answering(Coroutine[Any, Any, T], Generic[T]):
    """A coroutine that gives an answer with a lease. `async with` awaits it, too."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._answer: Any = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *what: Any) -> Any:
        return self._coroutine.throw(*what)

    def close(self) -> None:
        self._coroutine.close()

    async def __aenter__(self) -> T:
        self._answer = await self._coroutine
        return self._answer  # type: ignore[no-any-return]

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._answer.__aexit__(kind, raised, trace)
