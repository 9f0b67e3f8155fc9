"""vLLM's KV events for blocks in Cairn, for routers. They have vLLM's own hashes and the tokens.

Used if the engine was started with `kv_events_config`.
"""

from __future__ import annotations

import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    to_event_extra_keys,
)

from cairn.client import Client
from cairn.engine.places import Follower, Places
from cairn.engine.report import Report
from cairn.model import MatchedBlock, Tier

# A device tier has no medium here: `GPU` means the engine's own blocks.
MEDIA: dict[Tier, str] = {"pinned": MEDIUM_CPU, "disk": MEDIUM_STORAGE}
# Blocks on the engine's host. Events have no owner, because Dynamo reads only those without one and its own
# tier's.
LOCALITY = "LOCAL"


@dataclass(frozen=True)
class Described:
    """A block as vLLM's events describe it."""

    block_hash: Any
    parent: Any
    tokens: array.array[int]
    lora_id: int | None
    lora_name: str | None
    extra_keys: Any


class Events:
    """Where the blocks are that this engine has computed or looked up."""

    def __init__(
        self, client: Client, caches: Sequence[str], block_tokens: int, attention: str, report: Report
    ) -> None:
        """attention: the kind of the engine's only KV cache group, with the name it has in vLLM's events."""
        self._block_tokens = block_tokens
        self._attention = attention
        self._places: Places[Described] = Places(caches, MEDIA)
        self._follower = Follower(client, self._places, report)

    def track(self, request: Any, first: int, keys: Sequence[bytes]) -> None:
        """Reports the request's blocks from index `first` on, from now on."""
        usable = max(len(request.block_hashes) - first, 0)
        self._places.track(keys[:usable], lambda at: self._describe(request, first + at))

    def found(self, cache: str, blocks: Sequence[MatchedBlock]) -> None:
        """Records blocks that a look-up found in a cache."""
        for tier in MEDIA:
            self._places.stored(cache, tier, [block.key for block in blocks if block.tier == tier])

    def take(self) -> list[Any]:
        """The events since the last call."""
        changes = self._places.take()
        gone = defaultdict(list)
        for tier, block in changes.removed:
            gone[tier].append(block.block_hash)
        removed = [
            BlockRemoved(block_hashes=hashes, medium=MEDIA[tier], group_idx=0, locality=LOCALITY)
            for tier, hashes in gone.items()
        ]
        return [*removed, *(self._stored(tier, block) for tier, block in changes.stored)]

    def close(self) -> None:
        self._follower.close()

    def _describe(self, request: Any, at: int) -> Described:
        begin, end = at * self._block_tokens, (at + 1) * self._block_tokens
        lora = request.lora_request
        extra_keys, _ = generate_block_hash_extra_keys(request, begin, end, 0)
        return Described(
            block_hash=maybe_convert_block_hash(request.block_hashes[at]),
            parent=maybe_convert_block_hash(request.block_hashes[at - 1]) if at else None,
            tokens=array.array("I", request.all_token_ids[begin:end]),
            lora_id=None if lora is None else lora.adapter_id,
            lora_name=None if lora is None else lora.name,
            extra_keys=to_event_extra_keys([extra_keys]),
        )

    def _stored(self, tier: Tier, block: Described) -> Any:
        return BlockStored(
            block_hashes=[block.block_hash],
            parent_block_hash=block.parent,
            token_ids=list(block.tokens),
            block_size=self._block_tokens,
            lora_id=block.lora_id,
            medium=MEDIA[tier],
            lora_name=block.lora_name,
            extra_keys=block.extra_keys,
            group_idx=0,
            kv_cache_spec_kind=self._attention,
            locality=LOCALITY,
        )
