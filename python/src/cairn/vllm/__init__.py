"""Cairn as vLLM's KV connector, without a change to vLLM:

vllm serve MODEL --kv-transfer-config '{"kv_connector": "CairnConnector",
  "kv_connector_module_path": "cairn.vllm", "kv_role": "kv_both",
  "kv_connector_extra_config": {"cairn.url": "unix:/run/cairn/socket", "cairn.pinned_bytes": 17179869184}}'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cairn.vllm.connector import CairnConnector

__all__ = ["CairnConnector"]


def __getattr__(name: str) -> Any:
    """The connector is made of vLLM's classes; all beside it works without vLLM."""
    if name == "CairnConnector":
        from cairn.vllm.connector import CairnConnector

        return CairnConnector
    raise AttributeError(name)
