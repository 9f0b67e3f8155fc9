"""Cairn as the storage of SGLang's hierarchical cache, without changes to SGLang.

sglang serve --model-path MODEL --enable-hierarchical-cache --hicache-storage-backend dynamic
  --hicache-mem-layout page_first --hicache-storage-backend-extra-config '{"backend_name": "cairn",
  "module_path": "cairn.sglang", "class_name": "CairnStorage", "interface_v1": 1,
  "cairn.url": "unix:/run/cairn/socket", "cairn.pinned_bytes": 17179869184}'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cairn.sglang.storage import CairnStorage

__all__ = ["CairnStorage"]


def __getattr__(name: str) -> Any:
    """Imports it lazily because it derives from SGLang's class; the other modules work without SGLang."""
    if name == "CairnStorage":
        from cairn.sglang.storage import CairnStorage

        return CairnStorage
    raise AttributeError(name)
