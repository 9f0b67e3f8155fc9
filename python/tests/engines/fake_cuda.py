"""A fake of the parts of torch.cuda that copies of blocks call, on the CPU. It logs the calls in order.
Registering memory twice, or unmapping registered memory, is an error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

REAL = torch.cuda
ALREADY_REGISTERED = 712
COPIES = ("copy_", "index_copy_", "index_select", "stack", "_to_copy")


class Event:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda = cuda
        self.name = name

    def synchronize(self) -> None:
        self._cuda.log.append(f"wait for {self.name}")


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self._cuda = cuda
        self.name = name
        self._events = 0

    def wait_event(self, event: Event) -> None:
        self._cuda.log.append(f"{self.name} behind {event.name}")

    def wait_stream(self, stream: FakeStream) -> None:
        self._cuda.log.append(f"{self.name} behind {stream.name}")

    def record_event(self) -> Event:
        self._events += 1
        return Event(self._cuda, f"{self.name}.{self._events}")

    def synchronize(self) -> None:
        self._cuda.log.append(f"wait for {self.name}")


class FakeCuda(TorchDispatchMode):  # type: ignore[misc]
    """While it is active, logs each copy with the stream it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.registered: dict[int, int] = {}
        self._current = FakeStream(self, "engine")
        self._names = iter(("loads", "saves"))

    def Stream(self, device: Any) -> FakeStream:
        return FakeStream(self, next(self._names))

    def current_stream(self, device: Any) -> FakeStream:
        return self._current

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    @contextlib.contextmanager
    def device(self, device: Any) -> Iterator[None]:
        yield

    def cudart(self) -> FakeCuda:
        return self

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if any(address < begin + length and begin < address + size for begin, length in self.registered.items()):
            return ALREADY_REGISTERED
        self.registered[address] = size
        self.log.append("register")
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        self.log.append("unregister")
        return 0

    def __getattr__(self, name: str) -> Any:
        """Forwards what torch itself uses of the module."""
        return getattr(REAL, name)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        line = f"copy on {self._current.name}"
        if name in COPIES and self.log[-1:] != [line]:
            self.log.append(line)
        return function(*args, **(kwargs or {}))
