"""What agents and routers ask for blocks that they do not use now: where they are, and where they should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cairn import packed
from cairn.calls import _parts as parts
from cairn.decode import encode
from cairn.errors import BadAnswer
from cairn.http import Call, Request, Response, target
from cairn.model import MAX_CONTAINED_KEYS, Action, ActionResult, Key, PinPage, SessionList, key_list, keys_hex

# A letter for each byte of a packed answer.
TIER_LETTERS = ".dpks"
PACKED = ("Accept", "application/octet-stream")


def contains(
    cache: str, keys: Sequence[Key], *, shared: bool | None = None, kv_group: str | None = None
) -> Call[str]:
    """A letter for each key: `d` device, `p` pinned, `k` disk, `s` shared, `.` none. Only the first 131,072 keys are
    sent. It is no use of the blocks, and pins nothing. Keys of one length are sent without JSON.

    shared: also ask the shared tier for keys that are not in the cache.
    kv_group: only the blocks of this KV group.
    """
    path = ("v1", "caches", cache, "contains")
    keys = key_list(keys, MAX_CONTAINED_KEYS)

    def read(response: Response) -> str:
        places = bytes(response.body)
        if len(places) != len(keys) or any(place >= len(TIER_LETTERS) for place in places):
            raise BadAnswer(f"the answer has {len(places)} bytes for {len(keys)} keys, or one that is no tier")
        return "".join(TIER_LETTERS[place] for place in places)

    together = packed.packed_keys(keys)
    if together is None:
        body = parts.fields(keys=keys_hex(keys), shared=shared, kv_group=kv_group)
        return parts.post(target(*path), body, read, idempotent=True, headers=(PACKED,))
    length, joined = together
    query: dict[str, object] = {"key_bytes": length, "shared": shared, "kv_group": kv_group}
    request = Request("POST", target(*path, query=query), (parts.BYTES, PACKED), (joined,), idempotent=True)
    return Call(request, read)


def actions(cache: str, actions: Sequence[Action] | Mapping[str, Any]) -> Call[list[ActionResult]]:
    """Pins, unpins, retains, prefetches, demotes or shares blocks, in order, at most 256 actions. Each has a
    result. An action that is malformed refuses all of them.

    actions: or the envelope of an engine or a router, a mapping with `protocol_version`, `message_id` and
    `actions`, which is sent as it is.
    """
    path = target("v1", "caches", cache, "actions")
    if isinstance(actions, Mapping):
        return parts.post(path, dict(actions), parts.listed("results", ActionResult))
    body = {"actions": [_body(action) for action in actions]}
    wait_ms = sum(action.wait_ms or 0 for action in actions)
    return parts.post(path, body, parts.listed("results", ActionResult), wait_ms=wait_ms)


def pins(cache: str, *, limit: int | None = None, cursor: str | None = None) -> Call[PinPage]:
    """The pins of a cache, one page at a time: all of them for an admin, else those of this token."""
    query: dict[str, object] = {"limit": limit, "cursor": cursor}
    return parts.get(target("v1", "caches", cache, "pins", query=query), parts.into(PinPage))


def sessions(cache: str, *, limit: int | None = None) -> Call[SessionList]:
    """The conversations that requests have named, the latest used first, with their blocks by tier: all of them for
    an admin, else those of this token."""
    return parts.get(target("v1", "caches", cache, "sessions", query={"limit": limit}), parts.into(SessionList))


def unpin(pin: str) -> Call[int]:
    """Ends a pin and returns how many blocks it kept. Raises UnknownPin if there is none, or it has ended."""

    def read(response: Response) -> int:
        blocks = parts.document(response).get("blocks")
        if not isinstance(blocks, int):
            raise BadAnswer("the answer has no number blocks")
        return blocks

    return parts.delete(target("v1", "pins", pin), read)


def _body(action: Action) -> dict[str, object]:
    body: dict[str, object] = encode(action)
    names = ("keys", "tokens", "salt", "session")
    where = {name: body.pop(name) for name in names if name in body}
    if action.keys is not None:
        where["keys"] = keys_hex(action.keys)
    return {**body, "target": where}
