"""Keeps found blocks pinned, key by key, until they are loaded."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence

from cairn._forks import in_each_child

Release = Callable[[], None]


class Holds:
    """A key that was found several times is held that many times. Safe from several threads."""

    def __init__(self) -> None:
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._of_key: dict[bytes, list[_Held]] = defaultdict(list)

    def add(self, keys: Sequence[bytes], release: Release) -> None:
        """Holds the keys. `release` will be returned by `drop` once all of them are dropped."""
        held = _Held(release, len(keys))
        with self._lock:
            for key in keys:
                self._of_key[key].append(held)

    def drop(self, keys: Sequence[bytes]) -> list[Release]:
        """Drops each key once, if it is held. Returns the `release` functions of those that now hold no key; call
        them."""
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
        """Drops all keys. Returns every `release` function; call them."""
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
