"""The cache and the key of an object of LMCache."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass
from typing import Any

from cairn._forks import in_each_child
from cairn.engine.access import TIMEOUT_S, Access, open_access
from cairn.engine.buffer_store import BufferStore
from cairn.engine.keys import Identity, Rank
from cairn.engine.lookup import Finder
from cairn.engine.options import Options, Unsupported, flat_shape
from cairn.engine.report import Report

# The sizes of a model's objects differ only by group. More sizes than this mean that the objects are, for example,
# compressed.
MAX_CACHES = 32


def key_of(key: Any) -> bytes:
    """key: LMCache's `ObjectKey`. Its model selects the cache."""
    text = json.dumps([key.chunk_hash.hex(), key.kv_rank, key.object_group_id, key.cache_salt])
    return hashlib.sha256(text.encode()).digest()


def chain_of(key: Any) -> tuple[int, int, str]:
    """Objects of the same chain follow one another in a prompt."""
    return key.kv_rank, key.object_group_id, key.cache_salt


def layout_bytes(layout: Any) -> int:
    """layout: LMCache's `MemoryLayoutDesc`."""
    return sum(shape.numel() * dtype.itemsize for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True))


@dataclass(frozen=True)
class ObjectCache:
    """The cache of one model's objects of one size."""

    name: str
    object_bytes: int
    access: Access
    blocks: BufferStore
    finder: Finder

    @property
    def is_silent(self) -> bool:
        """Whether the server did not answer the last request."""
        return self.access.is_silent or self.finder.is_silent


class ObjectCaches:
    """All caches, made when they are needed. Safe from several threads."""

    def __init__(self, options: Options, report: Report) -> None:
        self.client = options.client(TIMEOUT_S)
        self._options = options
        self._report = report
        self._caches: dict[tuple[str, int], ObjectCache | None] = {}
        self._begin()
        in_each_child(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()

    def of(self, model: str, object_bytes: int) -> ObjectCache | None:
        """The cache for such objects; None if the server refuses it, for which the log has the reason."""
        with self._lock:
            if (model, object_bytes) not in self._caches:
                self._caches[model, object_bytes] = self._try_make(model, object_bytes)
            return self._caches[model, object_bytes]

    def all(self, model: str | None = None) -> list[ObjectCache]:
        """The caches made so far, of one model or of all."""
        with self._lock:
            return [one for (of, _), one in self._caches.items() if one is not None and model in (None, of)]

    def close(self) -> None:
        for one in self.all():
            one.finder.close()
            one.blocks.close()
        self.client.close()

    def _make(self, model: str, object_bytes: int) -> ObjectCache:
        if len(self._caches) >= MAX_CACHES:
            raise Unsupported(f"the objects have more than {MAX_CACHES} models and sizes; are they compressed?")
        identity = Identity(model, {"lmcache": "objects", "object_bytes": object_bytes})
        given = self._options.cache
        name = identity.cache_name(Rank()) if given is None else f"{given}.{object_bytes}"
        config = self._options.cache_config(flat_shape(object_bytes))
        access = open_access(self.client, name, config, object_bytes, self._report)
        finder = Finder(self.client, [name], "pinned" if self._options.pinned_bytes else None, self._report)
        return ObjectCache(name, object_bytes, access, BufferStore(access, object_bytes, self._report), finder)

    def _try_make(self, model: str, object_bytes: int) -> ObjectCache | None:
        try:
            return self._make(model, object_bytes)
        except Unsupported as error:
            self._report.warn(str(error))
        except Exception:
            self._report.failed("a cache could not be made")
        return None
