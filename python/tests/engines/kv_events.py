#!/usr/bin/env python3
"""vLLM's and SGLang's own classes read the server's events, whose bytes are in
`tests/server/kv_events/golden.json`: they must read every event, and every field of it. Run it with the
environment's Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import sglang.srt.disaggregation.kv_events as sglang_events
from vllm.distributed import kv_events as vllm_events
from vllm.v1.kv_offload.base import Locality, Medium

GOLDEN = json.loads((Path(__file__).parents[3] / "tests" / "server" / "kv_events" / "golden.json").read_text())
# For a cleared tier there is no event here: its blocks were reported as removed.
TOLD = [event for event in GOLDEN["events"] if event["kind"] != "cleared" or "tier" not in event]
KINDS = {"stored": "BlockStored", "removed": "BlockRemoved", "cleared": "AllBlocksCleared"}


def hash_of(key: str, form: str) -> Any:
    whole = bytes.fromhex(key)
    return whole if form == "bytes" else int.from_bytes(whole[-8:], "big")


def compare(events: list[Any], hashes: str) -> None:
    assert [type(event).__name__ for event in events] == [KINDS[told["kind"]] for told in TOLD]
    for event, told in zip(events, TOLD, strict=True):
        if told["kind"] == "cleared":
            continue
        assert event.block_hashes == [hash_of(key, hashes) for key in told["keys"]], (event, told)
        assert event.medium, event
        if told["kind"] == "stored":
            parent = told["parent"]
            assert event.parent_block_hash == (None if parent is None else hash_of(parent, hashes)), event
            assert (event.token_ids, event.block_size) == (told["tokens"], GOLDEN["block_size"]), event


def by_vllm(payload: bytes, form: dict[str, str]) -> None:
    batch = msgspec.msgpack.decode(payload, type=vllm_events.KVEventBatch)
    assert batch.data_parallel_rank == GOLDEN["rank"]
    compare(batch.events, form["hashes"])
    # The bytes that vLLM would have written for them.
    assert msgspec.msgpack.encode(batch) == payload
    words = {medium.value for medium in Medium} | {vllm_events.MEDIUM_GPU}
    for event, told in zip(batch.events, TOLD, strict=True):
        if told["kind"] == "cleared":
            continue
        assert event.ownership is None
        if told["tier"] == "shared" and form["shared"] == "medium":
            assert (event.medium, event.locality) == ("REMOTE", None)
        else:
            assert event.medium in words, event
            where = Locality.REMOTE if told["tier"] == "shared" else Locality.LOCAL
            assert event.locality == where.value, event


def main() -> None:
    read = 0
    for form in GOLDEN["payloads"]:
        payload = bytes.fromhex(form["hex"])
        if form["events"] != "maps":
            continue
        by_vllm(payload, form)
        read += 1
        if form["hashes"] == "int64":
            batch = msgspec.msgpack.decode(payload, type=sglang_events.KVEventBatch)
            compare(batch.events, form["hashes"])
            read += 1
    print(f"{read} payloads of {len(TOLD)} events each were read by the engines' own classes")
    assert read == 6


if __name__ == "__main__":
    main()
