"""Cairn below LMCache's memory, by its adapter `plugin`, without a change to LMCache:

lmcache server --l1-size-gb 20 --eviction-policy LRU --l2-adapter '{"type": "plugin",
  "module_path": "cairn.lmcache", "class_name": "CairnAdapter",
  "adapter_params": {"cairn.url": "unix:/run/cairn/socket", "cairn.pinned_bytes": 17179869184}}'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cairn.lmcache.adapter import CairnAdapter

__all__ = ["CairnAdapter"]


def __getattr__(name: str) -> Any:
    """It is made of LMCache's classes; all beside it works without LMCache."""
    if name == "CairnAdapter":
        from cairn.lmcache.adapter import CairnAdapter

        return CairnAdapter
    raise AttributeError(name)
