"""Which cache an object of LMCache's lies in, and under which key."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cairn._forks import in_each_child
from cairn.engine.access import TIMEOUT_S, Access, open_access
from cairn.engine.identity import Identity, Rank
from cairn.engine.lookup import Finder
from cairn.engine.options import Options, Unsupported, flat_shape
from cairn.engine.report import Report
from cairn.engine.shelf import Shelf

# Objects of one model differ in size by their group, and in no other way: what has more sizes is compressed, say.
MAX_HOMES = 32


def key_of(key: Any) -> bytes:
    """key: LMCache's `ObjectKey`. Its model is the cache's."""
    text = json.dumps([key.chunk_hash.hex(), key.kv_rank, key.object_group_id, key.cache_salt])
    return hashlib.sha256(text.encode()).digest()


def chain_of(key: Any) -> tuple[int, int, str]:
    """Objects of the same chain follow on one another in a prompt."""
    return key.kv_rank, key.object_group_id, key.cache_salt


def layout_bytes(layout: Any) -> int:
    """layout: LMCache's `MemoryLayoutDesc`."""
    return sum(shape.numel() * dtype.itemsize for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True))


@dataclass(frozen=True)
class Home:
    """A cache of objects of one model and size."""

    cache: str
    object_bytes: int
    access: Access
    shelf: Shelf
    finder: Finder

    @property
    def is_silent(self) -> bool:
        """Whether the server did not answer when it was last asked."""
        return self.access.is_silent or self.finder.is_silent


class Homes:
    """Made as they are needed. Safe from several threads."""

    def __init__(self, options: Options, report: Report) -> None:
        self.client = options.client(TIMEOUT_S)
        self._options = options
        self._report = report
        self._homes: dict[tuple[str, int], Home | None] = {}
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()

    def of(self, model: str, object_bytes: int) -> Home | None:
        """None where the server has no place for such objects, which the log says."""
        with self._lock:
            if (model, object_bytes) not in self._homes:
                self._homes[model, object_bytes] = self._softly(lambda: self._make(model, object_bytes))
            return self._homes[model, object_bytes]

    def all(self, model: str | None = None) -> list[Home]:
        """Those that were made so far, of one model or of all."""
        with self._lock:
            return [home for (of, _), home in self._homes.items() if home is not None and model in (None, of)]

    def close(self) -> None:
        for home in self.all():
            home.finder.close()
            home.shelf.close()
        self.client.close()

    def _make(self, model: str, object_bytes: int) -> Home:
        if len(self._homes) >= MAX_HOMES:
            raise Unsupported(f"objects of more than {MAX_HOMES} models and sizes; are they compressed?")
        shape = flat_shape(object_bytes)
        identity = Identity(model, {"lmcache": "objects", "object_bytes": object_bytes})
        named = self._options.cache
        cache = identity.cache_name(Rank()) if named is None else f"{named}.{object_bytes}"
        access = open_access(*(self.client, cache, self._options.cache_config(shape), object_bytes, self._report))
        finder = Finder(self.client, [cache], "pinned" if self._options.pinned_bytes else None, self._report)
        return Home(cache, object_bytes, access, Shelf(access, object_bytes, self._report), finder)

    def _softly(self, make: Callable[[], Home]) -> Home | None:
        try:
            return make()
        except Unsupported as error:
            self._report.warn(str(error))
        except Exception:
            self._report.failed("a cache could not be made")
        return None
