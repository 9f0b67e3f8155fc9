"""The kinds of requests that no_memory.py sends: every route, with every form of its body and answer.

A kind is called with the site before each request. It creates what the request needs and returns how to send it,
and how to clean up after it whatever the answer was (None: the connection was closed).
"""

import http.client
import json
import struct

from ledger import BLOCK_BYTES, SHAPE
from support import eventually

TOKEN = "a-token-of-thirty-two-characters"
CACHE = "/v1/caches/small"
OTHER = "/v1/caches/other"
BODY = {"layout": SHAPE, "tiers": {"device": {"num_blocks": 16}, "pinned": {"num_blocks": 16},
                                   "disk": {"num_blocks": 32}}}
SHARED = {"layout": SHAPE, "tiers": {"device": {"num_blocks": 4, "memory": {"export": "descriptor"}}}}
JSON, MSGPACK = "application/json", "application/msgpack"
WAIT = "wait_ms=5000"


def data(number):
    return number.to_bytes(4, "little") * (BLOCK_BYTES // 4)


def key(number):
    return f"{number:016x}"


def keys(first, count):
    return [key(number) for number in range(first, first + count)]


def packed_keys(first, count):
    return b"".join(bytes.fromhex(text) for text in keys(first, count))


def msgpack(value):
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, str):
        return b"\xdb" + struct.pack(">I", len(value.encode())) + value.encode()
    if isinstance(value, list):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(msgpack, value))
    return b"\xdf" + struct.pack(">I", len(value)) + b"".join(msgpack(part) for item in value.items() for part in item)


def batch(first, count, tier):
    header = json.dumps({"keys": keys(first, count), "tier": tier}).encode()
    return struct.pack("<I", len(header)) + header + b"".join(data(first + i) for i in range(count))


def end_lease(site, answer):
    """Ends the lease of an answer, as a client would."""
    lease = answer[1].get("lease") if answer and isinstance(answer[1], dict) else None
    if lease:
        site.call("DELETE", f"/v1/leases/{lease}")


def plain(method, path, body=None, undo=end_lease, make=None, **options):
    """The same request each time; `make` creates what it needs."""
    def kind(site):
        if make:
            make(site)
        return lambda: site.call(method, path, body, **options), lambda answer: undo(site, answer)
    return kind


def in_msgpack(method, path, body, **options):
    return plain(method, path, msgpack(body), Content_Type=MSGPACK, Accept=MSGPACK, **options)


def with_lease(request, count=1, tier="pinned"):
    """A request about leased slots: `request` makes (method, path, body, headers) from allocate's answer."""
    def kind(site):
        status, held = site.call("POST", CACHE + "/allocate", {"count": count, "tier": tier, "lease_ms": 60000})
        assert status == 200, held
        method, path, body, headers = request(held)
        return (lambda: site.call(method, path, body, **headers),
                lambda answer: site.call("DELETE", f"/v1/leases/{held['lease']}"))
    return kind


def slot_path(held, rest=""):
    at = held["blocks"][0]
    return f"{CACHE}/slots/{at['tier']}/{at['slot']}/data?generation={at['generation']}&lease={held['lease']}{rest}"


def commit_body(held):
    return {"lease": held["lease"], "blocks": [{**held["blocks"][0], "key": key(700), "parent": key(4)}]}


def with_transfer(method, rest="", wait_ms=0):
    """A request about a transfer that has just been started."""
    def kind(site):
        asked = site.call("POST", CACHE + "/transfers", {"keys": keys(1, 2), "to": "disk", "wait_ms": wait_ms})
        assert asked[0] in (200, 202), asked
        return lambda: site.call(method, f"/v1/transfers/{asked[1]['transfer']}{rest}"), lambda answer: None
    return kind


def without(method, path):
    return lambda site: site.call(method, path)


def put_cache(path, body):
    return lambda site: site.call("PUT", path, body)


def drop(path):
    return lambda site, answer: site.call("DELETE", path + "?force=true")


def make_snapshot(site):
    site.call("DELETE", CACHE + "/snapshots/one")
    asked = site.call("POST", CACHE + "/snapshots", {"name": "one", "wait_ms": 5000})
    assert asked[0] == 200, asked


def drop_snapshot(site, answer):
    """Waits until the snapshot is made, because before that it has no file."""
    eventually(lambda: site.call("GET", "/v1/system")[1]["transfers"] == {"queued": 0, "running": 0}, "its end")
    site.call("DELETE", CACHE + "/snapshots/one")


def leave(site, answer=None):
    site.call("DELETE", "/v1/groups/pair")
    site.peer.call("DELETE", "/v1/groups/pair")


AGENT_SHAPE = {name: SHAPE[name] for name in ("num_layers", "outer_dim", "page_size", "inner_dim", "dtype_width_bytes")}


def agent_body(site):
    """The memory is a file in the folder that the server imports from. A layer has 16 blocks and begins at a
    page."""
    layer = 16 * BLOCK_BYTES // SHAPE["num_layers"]
    apart = (layer + 4095) // 4096 * 4096
    path = site.imports / "agent"
    with open(path, "ab") as file:
        file.truncate(apart * SHAPE["num_layers"])
    return {"num_blocks": 16, "layout": "layer_separate", "shape": AGENT_SHAPE, "regions": [
        {"kind": "shm", "path": str(path), "offset_bytes": apart * number, "size_bytes": layer}
        for number in range(SHAPE["num_layers"])]}


def with_agent(method, path, body=None, registered=True):
    """A request of an engine that has registered memory, or is registering it."""
    def kind(site):
        site.call("DELETE", AGENT)
        whole = agent_body(site)
        if registered:
            status, answer = site.call("PUT", AGENT, whole)
            assert status == 201, answer
        return (lambda: site.call(method, path, body if registered else whole),
                lambda answer: site.call("DELETE", AGENT))
    return kind


AGENT = "/v1/agents/engine"
PAIR = {"name": "pair", "world_size": 2, "device_id": 0}


def form(site):
    """Forms a group of this server, as rank 0, and the peer."""
    leave(site)
    status, answer = site.call("POST", "/v1/groups", {**PAIR, "rank": 0})
    assert status == 201, answer
    status, answer = site.peer.call("POST", "/v1/groups", {**PAIR, "rank": 1, "unique_id": answer["unique_id"]})
    assert status == 201, answer
    eventually(lambda: site.call("GET", "/v1/groups/pair")[1]["state"] == "ready", "the group")


def in_group(operation, first, mine, peers_operation=None, peers=None):
    """Both ranks run the operation. The peer, whose memory is not limited, is asked first."""
    def make(site):
        form(site)
        for number in range(1, 5):
            site.peer.call("PUT", f"{CACHE}/keys/{key(800 + number)}?tier=pinned", data(800 + number))
        body = {"cache": "small", "keys": keys(first, 2), **(peers or mine)}
        status, answer = site.peer.call("POST", f"/v1/groups/pair/{peers_operation or operation}", body)
        assert status in (200, 202), answer
    return plain("POST", f"/v1/groups/pair/{operation}", {"cache": "small", "keys": keys(first, 2), **mine,
                                                          "wait_ms": 5000}, make=make, undo=leave)


def with_numbers():
    """Both ranks contribute numbers, the peer first."""
    def make(site):
        form(site)
        status, answer = site.peer.call("POST", "/v1/groups/pair/all_reduce", {"values": [4, -5], "op": "sum"})
        assert status in (200, 202), answer
    return plain("POST", "/v1/groups/pair/all_reduce", {"values": [1, 2], "op": "sum", "wait_ms": 5000}, make=make,
                 undo=leave)


def listen(site):
    """Subscribes to events, causes one, and receives it or is disconnected."""
    def send():
        connection = site.call.open()
        try:
            connection.request("GET", "/v1/events", headers={"Authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            if answer.status != 200:
                return answer.status, answer.read()
            heard = answer.read1()
            stored = site.call("PUT", f"{CACHE}/keys/{key(900)}?tier=pinned", data(900))
            while stored and stored[0] == 201 and b"event: stored" not in heard:
                more = answer.read1()
                if not more:
                    return None
                heard += more
            return 200, heard
        except TimeoutError as late:
            raise AssertionError("an event was never received") from late
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
    site.call("DELETE", f"{CACHE}/keys/{key(900)}")
    return send, lambda answer: None


def pin(site):
    """Returns the pin of blocks 1 to 4."""
    answer = site.call("POST", CACHE + "/actions", {"actions": [
        {"type": "pin", "target": {"keys": keys(1, 4)}, "refresh_on_hit": True}]})
    return answer[1]["results"][0]["pin"]


def drop_pins(site, answer):
    """Ends every pin: a request without an answer may have made one."""
    for one in site.call("GET", CACHE + "/pins")[1]["pins"]:
        site.call("DELETE", f"/v1/pins/{one['pin']}")


def end_pin(site):
    number = pin(site)
    return (lambda: site.call("DELETE", f"/v1/pins/{number}"), lambda answer: drop_pins(site, answer))


# Before each kind, blocks 1 to 4 are in the pinned tier.
KINDS = {
    "healthz": plain("GET", "/healthz"),
    "readyz": plain("GET", "/readyz"),
    "system": plain("GET", "/v1/system"),
    "metrics": plain("GET", "/metrics"),
    "openapi": plain("GET", "/openapi.json"),
    "status page": plain("GET", "/"),
    "history": plain("GET", "/v1/history"),
    "runbook": plain("GET", "/runbooks/CairnDown"),
    "nothing there": plain("GET", "/v1/nothing"),
    "without a token": plain("GET", CACHE, Authorization="Bearer another-token-of-36-characters"),
    "devices": plain("GET", "/v1/devices"),
    "empty a device's cache": plain("POST", "/v1/devices/0/empty_cache"),
    "reset a device's peaks": plain("POST", "/v1/devices/0/reset_peaks"),
    "malformed": plain("POST", CACHE + "/match", b"{", Content_Type=JSON),

    "caches": plain("GET", "/v1/caches"),
    "cache": plain("GET", CACHE),
    "cache in MessagePack": plain("GET", CACHE, Accept=MSGPACK),
    "put cache": plain("PUT", OTHER, BODY, make=without("DELETE", OTHER), undo=drop(OTHER)),
    "put cache in MessagePack": in_msgpack("PUT", OTHER, BODY, make=without("DELETE", OTHER), undo=drop(OTHER)),
    "delete cache": plain("DELETE", OTHER, make=put_cache(OTHER, BODY), undo=drop(OTHER)),
    "other policies": plain("PATCH", OTHER, {"offload": "never", "default_lease_ms": 1000},
                            make=put_cache(OTHER, BODY), undo=drop(OTHER)),
    "grow": plain("PATCH", OTHER, {"tiers": {"pinned": {"num_blocks": 24}, "disk": {"num_blocks": 40}}},
                  make=put_cache(OTHER, BODY), undo=drop(OTHER)),
    "shrink": plain("PATCH", OTHER, {"tiers": {"pinned": {"num_blocks": 8}, "disk": {"num_blocks": 8}}},
                    make=put_cache(OTHER, BODY), undo=drop(OTHER)),
    "export": plain("POST", CACHE + "/tiers/pinned/export"),
    "export a descriptor": plain("POST", OTHER + "/tiers/device/export", over_unix=True,
                                 make=put_cache(OTHER, SHARED), undo=drop(OTHER)),

    "match": plain("POST", CACHE + "/match", {"keys": keys(1, 4), "lease_ms": 60000}),
    "match in MessagePack": in_msgpack("POST", CACHE + "/match", {"keys": keys(1, 4), "lease_ms": 0}),
    "match packed": plain("POST", CACHE + "/match?key_bytes=8&lease_ms=60000", packed_keys(1, 4)),
    "match answered packed": plain("POST", CACHE + "/match", {"keys": keys(1, 4), "lease_ms": 0},
                                   Accept="application/octet-stream"),
    "match tokens": plain("POST", CACHE + "/match", {"tokens": list(range(64)), "salt": "s", "lease_ms": 60000}),
    "onboard": plain("POST", CACHE + "/match", {"keys": keys(1, 4), "onboard": "device", "wait_ms": 5000,
                                                "lease_ms": 60000},
                     make=lambda site: site.call("POST", CACHE + "/clear", {"tier": "device"})),
    "allocate": plain("POST", CACHE + "/allocate", {"count": 4, "tier": "device", "lease_ms": 60000}),
    "allocate by eviction": plain("POST", CACHE + "/allocate", {"count": 15, "tier": "pinned", "lease_ms": 60000}),
    "allocate over the Unix socket": plain("POST", CACHE + "/allocate", {"count": 1, "lease_ms": 60000},
                                            over_unix=True),
    "commit": with_lease(lambda held: ("POST", CACHE + "/commit", commit_body(held), {})),
    "commit in MessagePack": with_lease(lambda held: (
        "POST", CACHE + "/commit", msgpack(commit_body(held)), {"Content_Type": MSGPACK, "Accept": MSGPACK})),
    "write slot": with_lease(lambda held: ("PUT", slot_path(held), data(1), {})),
    "write a region of a slot": with_lease(lambda held: (
        "PUT", slot_path(held, "&layer=1&outer=0"), data(1)[:BLOCK_BYTES // 4], {})),
    "renew": with_lease(lambda held: ("POST", f"/v1/leases/{held['lease']}/renew", {"lease_ms": 60000}, {})),
    "release": with_lease(lambda held: ("POST", f"/v1/leases/{held['lease']}/release",
                                        {"blocks": held["blocks"][:1]}, {}), count=2),
    "leases": with_lease(lambda held: ("GET", CACHE + "/leases", None, {})),
    "end lease": with_lease(lambda held: ("DELETE", f"/v1/leases/{held['lease']}", None, {})),

    "put key": plain("PUT", f"{CACHE}/keys/{key(500)}?tier=pinned", data(500),
                     make=without("DELETE", f"{CACHE}/keys/{key(500)}")),
    "put key to the device": plain("PUT", f"{CACHE}/keys/{key(501)}?tier=device", data(501),
                                   make=without("DELETE", f"{CACHE}/keys/{key(501)}")),
    "put key to disk": plain("PUT", f"{CACHE}/keys/{key(502)}?tier=disk", data(502),
                             make=without("DELETE", f"{CACHE}/keys/{key(502)}")),
    "put key again": plain("PUT", f"{CACHE}/keys/{key(1)}?tier=pinned", data(1)),
    "get key": plain("GET", f"{CACHE}/keys/{key(1)}"),
    "get a range of a key": plain("GET", f"{CACHE}/keys/{key(1)}", Range="bytes=100-199"),
    "get key of the disk": plain("GET", f"{CACHE}/keys/{key(503)}",
                                 make=lambda site: site.call("PUT", f"{CACHE}/keys/{key(503)}?tier=disk", data(503))),
    "head key": plain("HEAD", f"{CACHE}/keys/{key(1)}"),
    "delete key": plain("DELETE", f"{CACHE}/keys/{key(1)}"),
    "metadata": plain("PUT", f"{CACHE}/keys/{key(1)}/metadata", {"a": 1}),
    "get metadata": plain("GET", f"{CACHE}/keys/{key(1)}/metadata"),
    "read": plain("POST", CACHE + "/read", {"keys": keys(1, 4)}),
    "write": plain("POST", CACHE + "/write", batch(600, 3, "pinned"),
                   make=lambda site: site.call("POST", CACHE + "/evict", {"keys": keys(600, 3)})),
    "write to disk": plain("POST", CACHE + "/write", batch(600, 3, "disk"),
                           make=lambda site: site.call("POST", CACHE + "/evict", {"keys": keys(600, 3)})),

    "transfer": plain("POST", CACHE + "/transfers", {"keys": keys(1, 2), "to": "disk", "wait_ms": 5000},
                      make=lambda site: site.call("POST", CACHE + "/clear", {"tier": "disk"})),
    "move": plain("POST", CACHE + "/transfers", {"keys": keys(1, 4), "to": "device", "mode": "move", "wait_ms": 5000},
                  make=lambda site: site.call("POST", CACHE + "/clear", {"tier": "device"})),
    "get transfer": with_transfer("GET", "?" + WAIT),
    "get transfer that has ended": with_transfer("GET", wait_ms=5000),
    "cancel transfer": with_transfer("DELETE"),
    "transfers": plain("GET", "/v1/transfers"),
    "drain": plain("POST", CACHE + "/drain", {"wait_ms": 5000},
                   make=lambda site: site.call("POST", CACHE + "/clear", {"tier": "disk"})),
    "hint for keys": plain("POST", CACHE + "/hints", {"keys": keys(1, 4), "reuse": {"within_ms": 1000}}),
    "hint for a session": plain("POST", CACHE + "/hints", {"session": "chat", "reuse": "never"},
                                make=lambda site: site.call("POST", CACHE + "/match", {
                                    "keys": keys(1, 4), "lease_ms": 0, "session": "chat", "reuse": "soon"})),
    "contains": plain("POST", CACHE + "/contains", {"keys": keys(1, 6)}),
    "contains packed": plain("POST", CACHE + "/contains?key_bytes=8", packed_keys(1, 6),
                             Accept="application/octet-stream"),
    "pin": plain("POST", CACHE + "/actions", {"actions": [
        {"id": "a", "type": "pin", "target": {"keys": keys(1, 4)}, "refresh_on_hit": True}]}, undo=drop_pins),
    "unpin": plain("POST", CACHE + "/actions", {"actions": [{"type": "unpin", "target": {"keys": keys(1, 4)}}]},
                   make=pin, undo=drop_pins),
    "retain and demote": plain("POST", CACHE + "/actions", {"actions": [
        {"type": "retain", "target": {"keys": keys(1, 2)}, "priority": 60},
        {"type": "demote", "target": {"keys": keys(3, 2)}, "to": "disk", "wait_ms": 5000}]},
        make=lambda site: site.call("POST", CACHE + "/clear", {"tier": "disk"})),
    "prefetch": plain("POST", CACHE + "/actions", {"actions": [
        {"type": "prefetch", "target": {"keys": keys(1, 4)}, "to": "device", "wait_ms": 5000}]},
        make=lambda site: site.call("POST", CACHE + "/clear", {"tier": "device"})),
    "match of pinned blocks": plain("POST", CACHE + "/match", {"keys": keys(1, 4), "lease_ms": 60000}, make=pin,
                                    undo=lambda site, answer: (end_lease(site, answer), drop_pins(site, answer))),
    "pins": plain("GET", CACHE + "/pins", make=pin, undo=drop_pins),
    "sessions": plain("GET", CACHE + "/sessions"),
    "end a pin": end_pin,
    "pending": plain("GET", CACHE + "/pending"),
    "miss ratio": plain("GET", CACHE + "/miss_ratio?capacities=100,200"),
    "evict": plain("POST", CACHE + "/evict", {"keys": keys(1, 2)}),
    "clear": plain("POST", CACHE + "/clear", {"tier": "pinned"}),
    "blocks": plain("GET", CACHE + "/blocks?limit=100"),

    "snapshot": plain("POST", CACHE + "/snapshots", {"name": "one", "wait_ms": 5000},
                      make=without("DELETE", CACHE + "/snapshots/one"), undo=drop_snapshot),
    "compressed snapshot": plain("POST", CACHE + "/snapshots", {"name": "one", "compress": True, "wait_ms": 5000},
                                 make=without("DELETE", CACHE + "/snapshots/one"), undo=drop_snapshot),
    "snapshots": plain("GET", CACHE + "/snapshots", make=make_snapshot, undo=drop_snapshot),
    "restore": plain("POST", CACHE + "/snapshots/one/restore", {"wait_ms": 5000}, undo=drop_snapshot,
                     make=lambda site: (make_snapshot(site), site.call("POST", CACHE + "/clear", {}))),
    "delete snapshot": plain("DELETE", CACHE + "/snapshots/one", make=make_snapshot, undo=drop_snapshot),

    "join a group": plain("POST", "/v1/groups", {**PAIR, "rank": 0}, undo=leave),
    "groups": plain("GET", "/v1/groups", make=form, undo=leave),
    "group": plain("GET", "/v1/groups/pair", make=form, undo=leave),
    "leave a group": plain("DELETE", "/v1/groups/pair", make=form, undo=leave),
    "send": in_group("send", 1, {"peer": 1}, "recv", {"peer": 0}),
    "receive": in_group("recv", 801, {"peer": 1}, "send", {"peer": 0}),
    "broadcast": in_group("broadcast", 801, {"root": 1}),
    "gather": in_group("all_gather", 1, {}),
    "agree": in_group("agree", 1, {}),
    "reduce": with_numbers(),

    "register an agent": with_agent("PUT", AGENT, registered=False),
    "agents": with_agent("GET", "/v1/agents"),
    "agent": with_agent("GET", AGENT),
    "end an agent": with_agent("DELETE", AGENT),
    "load": with_agent("POST", CACHE + "/load", {"keys": keys(1, 4), "agent": "engine", "blocks": [3, 2, 1, 0],
                                                 "wait_ms": 5000}),
    "store": with_agent("POST", CACHE + "/store", {"keys": keys(950, 2), "agent": "engine", "blocks": [4, 5],
                                                   "tier": "pinned", "wait_ms": 5000}),

    "events": listen,
}
