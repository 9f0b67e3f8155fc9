"""Blocks that were found and are wanted soon: held, key by key, until they are given up."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence

from cairn._forks import in_each_child

Release = Callable[[], None]


class Holds:
    """A key that was found several times is held as often. Safe from several threads."""

    def __init__(self) -> None:
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._of_key: dict[bytes, list[_Held]] = defaultdict(list)

    def add(self, keys: Sequence[bytes], release: Release) -> None:
        """The keys are held from here on, until `release` is called."""
        held = _Held(release, len(keys))
        with self._lock:
            for key in keys:
                self._of_key[key].append(held)

    def drop(self, keys: Sequence[bytes]) -> list[Release]:
        """Gives each key up once, if it is held; what is to be called for what holds none any more."""
        ended = []
        with self._lock:
            for key in keys:
                held = self._of_key.get(key)
                if not held:
                    continue
                first = held.pop(0)
                if not held:
                    del self._of_key[key]
                first.keys -= 1
                if first.keys == 0:
                    ended.append(first.release)
        return ended

    def drop_all(self) -> list[Release]:
        with self._lock:
            held = {id(one): one.release for of_key in self._of_key.values() for one in of_key}
            self._of_key.clear()
        return list(held.values())

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._of_key.values()))


class _Held:
    def __init__(self, release: Release, keys: int) -> None:
        self.release = release
        self.keys = keys
