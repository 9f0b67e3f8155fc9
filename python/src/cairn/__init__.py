"""Cairn keeps the KV-cache blocks of LLM engines outside the engines; this is its client.

`Client` and `AsyncClient` speak the server's API, `TierView` maps a tier of a server on the same host,
`cairn.vllm` is the connector for vLLM. Errors are `CairnError`: `Refused`, by the problem's code, where the
server says no, `NoAnswer` where it says nothing.
"""

from cairn.agent import AgentMemory
from cairn.aio import AsyncClient
from cairn.client import Client
from cairn.errors import CairnError, LeaseLost, NoAnswer, Refused
from cairn.model import AgentRegion, CacheConfig, Handle, NewBlock, Shape, TierConfig
from cairn.tier_view import TierView

__all__ = [
    "AgentMemory",
    "AgentRegion",
    "AsyncClient",
    "CacheConfig",
    "CairnError",
    "Client",
    "Handle",
    "LeaseLost",
    "NewBlock",
    "NoAnswer",
    "Refused",
    "Shape",
    "TierConfig",
    "TierView",
]
