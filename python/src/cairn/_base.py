"""What both clients have in common: the server, the token, and a method for each call of the API."""

from __future__ import annotations

import functools
import inspect
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from cairn._forks import in_each_child
from cairn.address import Token, parse_address
from cairn.calls import actions as _actions
from cairn.calls import agents as _agents
from cairn.calls import caches as _caches
from cairn.calls import keys as _keys
from cairn.calls import life as _life
from cairn.calls import service as _service
from cairn.calls import transfers as _transfer
from cairn.errors import WrongArgument
from cairn.http import Call, Request, head_of
from cairn.leased import Answering, Leased
from cairn.tracing import current_traceparent

if TYPE_CHECKING:
    from cairn.aio import AsyncClient
    from cairn.client import Client

P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound=Leased)


class Verb(Generic[P, T]):
    """A method that performs the call that `make` returns, with the parameters and the docstring of `make`."""

    def __init__(self, make: Callable[P, Call[T]]) -> None:
        self.make = make

    if TYPE_CHECKING:  # at run time `ClientBase` replaces each Verb by a function

        @overload
        def __get__(self, client: None, owner: object) -> Callable[..., Any]: ...

        @overload
        def __get__(self, client: Client, owner: type[Client]) -> Callable[P, T]: ...

        @overload
        def __get__(self, client: AsyncClient, owner: type[AsyncClient]) -> Callable[P, Awaitable[T]]: ...

        def __get__(self, client: object, owner: object) -> Any: ...


class LeasingVerb(Verb[P, L]):
    """A verb whose answer holds blocks until a `with` statement ends."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, client: None, owner: object) -> Callable[..., Any]: ...

        @overload
        def __get__(self, client: Client, owner: type[Client]) -> Callable[P, L]: ...

        @overload
        def __get__(self, client: AsyncClient, owner: type[AsyncClient]) -> Callable[P, Answering[L]]: ...

        def __get__(self, client: object, owner: object) -> Any: ...


class ClientBase:
    """The base class of both clients. A client's own `perform` decides whether its methods are coroutines."""

    def __init__(self, url: str, token: Token | None, ca: str | None, timeout: float, retries: int) -> None:
        if retries < 0:
            raise WrongArgument(f"retries is {retries}; it must be at least 0")
        self.url = url
        self.timeout = timeout
        self.retries = retries
        self._address = parse_address(url)
        self._token = token
        self._ca = ca
        self._tls = ssl.create_default_context(cafile=ca) if self._address.tls else None
        self._begin()
        in_each_child(self._begin)

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if ClientBase not in cls.__bases__:
            return  # a subclass of a client keeps the methods that it overrides
        is_async = inspect.iscoroutinefunction(vars(cls)["perform"])
        for name, verb in vars(ClientBase).items():
            if isinstance(verb, Verb):
                setattr(cls, name, _made_of(verb, is_async))

    def _begin(self) -> None:
        """Starts without connections: for a new client, and in a forked child."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _head(self, request: Request) -> memoryview:
        return head_of(request, self._address.host, self._token, current_traceparent())

    healthy = Verb(_service.healthy)
    ready = Verb(_service.ready)
    system = Verb(_service.system)
    metrics = Verb(_service.metrics)
    openapi = Verb(_service.openapi)

    make_cache = Verb(_caches.make_cache)
    caches = Verb(_caches.caches)
    cache_info = Verb(_caches.cache_info)
    drop_cache = Verb(_caches.drop_cache)
    change_cache = Verb(_caches.change_cache)
    leases = Verb(_caches.leases)
    pending = Verb(_caches.pending)
    miss_ratio = Verb(_caches.miss_ratio)
    evict = Verb(_caches.evict)
    clear = Verb(_caches.clear)
    blocks = Verb(_caches.blocks)
    export = Verb(_caches.export)
    metadata = Verb(_caches.metadata)
    set_metadata = Verb(_caches.set_metadata)

    match = LeasingVerb(_life.match)
    match_tokens = LeasingVerb(_life.match_tokens)
    allocate = LeasingVerb(_life.allocate)
    write_slot = Verb(_life.write_slot)
    commit = Verb(_life.commit)
    renew = Verb(_life.renew)
    release = Verb(_life.release)
    hint = Verb(_life.hint)

    contains = Verb(_actions.contains)
    actions = Verb(_actions.actions)
    pins = Verb(_actions.pins)
    sessions = Verb(_actions.sessions)
    unpin = Verb(_actions.unpin)

    put = Verb(_keys.put)
    get = Verb(_keys.get)
    has = Verb(_keys.has)
    delete = Verb(_keys.delete)
    read = Verb(_keys.read)
    write = Verb(_keys.write)

    transfer = Verb(_transfer.transfer)
    transfers = Verb(_transfer.transfers)
    drain = Verb(_transfer.drain)
    transfer_state = Verb(_transfer.transfer_state)
    cancel_transfer = Verb(_transfer.cancel_transfer)
    snapshots = Verb(_transfer.snapshots)
    make_snapshot = Verb(_transfer.make_snapshot)
    restore_snapshot = Verb(_transfer.restore_snapshot)
    drop_snapshot = Verb(_transfer.drop_snapshot)
    join_group = Verb(_transfer.join_group)
    groups = Verb(_transfer.groups)
    group = Verb(_transfer.group)
    leave_group = Verb(_transfer.leave_group)
    send = Verb(_transfer.send)
    recv = Verb(_transfer.recv)
    broadcast = Verb(_transfer.broadcast)
    all_gather = Verb(_transfer.all_gather)
    agree = Verb(_transfer.agree)
    all_reduce = Verb(_transfer.all_reduce)

    put_agent = Verb(_agents.put_agent)
    agents = Verb(_agents.agents)
    agent = Verb(_agents.agent)
    drop_agent = Verb(_agents.drop_agent)
    load = Verb(_agents.load)
    store = Verb(_agents.store)
    devices = Verb(_agents.devices)
    empty_device_cache = Verb(_agents.empty_device_cache)
    reset_device_peaks = Verb(_agents.reset_device_peaks)


def _made_of(verb: Verb[Any, Any], is_async: bool) -> Callable[..., Any]:
    make = verb.make
    if isinstance(verb, LeasingVerb):
        method = _async_leasing(make) if is_async else _leasing(make)
    else:
        method = _async_method(make) if is_async else _method(make)
    return with_signature(functools.wraps(make)(method), make)


def _method(make: Callable[..., Call[Any]]) -> Callable[..., Any]:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self.perform(make(*args, **kwargs))

    return method


def _leasing(make: Callable[..., Call[Any]]) -> Callable[..., Any]:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self.perform(make(*args, **kwargs)).released_by(self.release)

    return method


def _async_method(make: Callable[..., Call[Any]]) -> Callable[..., Any]:
    async def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await self.perform(make(*args, **kwargs))

    return method


def _async_leasing(make: Callable[..., Call[Any]]) -> Callable[..., Any]:
    async def perform(self: Any, call: Call[Any]) -> Any:
        return (await self.perform(call)).released_by(self.release)

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return Answering(perform(self, make(*args, **kwargs)))

    return method


def with_signature(method: Any, make: Callable[..., object], *, known: int = 0) -> Callable[..., Any]:
    """Sets what help() and editors show: `self`, then the parameters of `make` without the first `known` ones."""
    signature = inspect.signature(make)
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = signature.replace(parameters=[me, *list(signature.parameters.values())[known:]])
    return method  # type: ignore[no-any-return]
