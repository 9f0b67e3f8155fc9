"""One cache of a server as an object: the verbs of a client without the cache's name."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from cairn._base import with_signature
from cairn.calls import actions as _actions
from cairn.calls import agents as _agents
from cairn.calls import caches as _caches
from cairn.calls import keys as _keys
from cairn.calls import life as _life
from cairn.calls import transfers as _transfer
from cairn.http import Call
from cairn.leased import Answering, Leased

if TYPE_CHECKING:
    from cairn._base import ClientBase

P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound=Leased)


class CacheVerb(Generic[P, T]):
    """A method that calls the client's method of the name of `make` with the cache's name."""

    def __init__(self, make: Callable[Concatenate[str, P], Call[T]]) -> None:
        self.make = make

    if TYPE_CHECKING:  # at run time `CacheBase` replaces each CacheVerb by a function

        @overload
        def __get__(self, cache: None, owner: object) -> Callable[..., Any]: ...

        @overload
        def __get__(self, cache: Cache, owner: type[Cache]) -> Callable[P, T]: ...

        @overload
        def __get__(self, cache: AsyncCache, owner: type[AsyncCache]) -> Callable[P, Awaitable[T]]: ...

        def __get__(self, cache: object, owner: object) -> Any: ...


class LeasingCacheVerb(CacheVerb[P, L]):
    """A verb whose answer holds blocks until a `with` statement ends."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, cache: None, owner: object) -> Callable[..., Any]: ...

        @overload
        def __get__(self, cache: Cache, owner: type[Cache]) -> Callable[P, L]: ...

        @overload
        def __get__(self, cache: AsyncCache, owner: type[AsyncCache]) -> Callable[P, Answering[L]]: ...

        def __get__(self, cache: object, owner: object) -> Any: ...


class CacheBase:
    """A cache by its name. It need not exist: `make` makes it, and other calls raise UnknownCache."""

    def __init__(self, client: ClientBase, name: str) -> None:
        self.client = client
        self.name = name

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name, verb in vars(CacheBase).items():
            if isinstance(verb, CacheVerb):
                setattr(cls, name, _method(name, verb.make))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} of {self.client.url})"

    make = CacheVerb(_caches.make_cache)
    info = CacheVerb(_caches.cache_info)
    drop = CacheVerb(_caches.drop_cache)
    change = CacheVerb(_caches.change_cache)
    leases = CacheVerb(_caches.leases)
    pending = CacheVerb(_caches.pending)
    miss_ratio = CacheVerb(_caches.miss_ratio)
    evict = CacheVerb(_caches.evict)
    clear = CacheVerb(_caches.clear)
    blocks = CacheVerb(_caches.blocks)
    export = CacheVerb(_caches.export)
    metadata = CacheVerb(_caches.metadata)
    set_metadata = CacheVerb(_caches.set_metadata)

    match = LeasingCacheVerb(_life.match)
    match_tokens = LeasingCacheVerb(_life.match_tokens)
    allocate = LeasingCacheVerb(_life.allocate)
    write_slot = CacheVerb(_life.write_slot)
    commit = CacheVerb(_life.commit)
    hint = CacheVerb(_life.hint)

    contains = CacheVerb(_actions.contains)
    actions = CacheVerb(_actions.actions)
    pins = CacheVerb(_actions.pins)
    sessions = CacheVerb(_actions.sessions)

    put = CacheVerb(_keys.put)
    get = CacheVerb(_keys.get)
    has = CacheVerb(_keys.has)
    delete = CacheVerb(_keys.delete)
    read = CacheVerb(_keys.read)
    write = CacheVerb(_keys.write)

    transfer = CacheVerb(_transfer.transfer)
    drain = CacheVerb(_transfer.drain)
    snapshots = CacheVerb(_transfer.snapshots)
    make_snapshot = CacheVerb(_transfer.make_snapshot)
    restore_snapshot = CacheVerb(_transfer.restore_snapshot)
    drop_snapshot = CacheVerb(_transfer.drop_snapshot)

    load = CacheVerb(_agents.load)
    store = CacheVerb(_agents.store)


def _method(name: str, make: Callable[..., Call[Any]]) -> Callable[..., Any]:
    @functools.wraps(make)
    def method(self: CacheBase, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.client, make.__name__)(self.name, *args, **kwargs)

    method.__name__ = name
    return with_signature(method, make, known=1)


class Cache(CacheBase):
    """A cache of a blocking client, from `client.cache("name")`. As safe from several threads as the client."""


class AsyncCache(CacheBase):
    """A cache of an asyncio client, from `client.cache("name")`. Its verbs are coroutines."""
