"""The Python client of Cairn, a server that stores LLM engines' KV-cache blocks outside the engine.

`Client` and `AsyncClient` call the server's API. `TierView` maps a tier of a server on the same host.
`AgentMemory` registers an engine's own memory. The connectors are `cairn.vllm`, `cairn.sglang` and
`cairn.lmcache`. Every error is a `CairnError`: `Refused` (a subclass for each problem code) if the server refuses
a request, `NoAnswer` if it does not answer.
"""

from cairn.agent import AgentMemory
from cairn.aio import AsyncClient
from cairn.client import Client
from cairn.errors import CairnError, LeaseLost, NoAnswer, Refused
from cairn.model import AgentRegion, CacheConfig, Handle, KvGroup, NewBlock, Shape, TierConfig
from cairn.tier_view import TierView

__all__ = [
    "AgentMemory",
    "AgentRegion",
    "AsyncClient",
    "CacheConfig",
    "CairnError",
    "Client",
    "Handle",
    "KvGroup",
    "LeaseLost",
    "NewBlock",
    "NoAnswer",
    "Refused",
    "Shape",
    "TierConfig",
    "TierView",
]
