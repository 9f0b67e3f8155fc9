"""The requests that calls make, compared with the contract."""

import json
import struct
import unittest

from cairn.calls import actions, caches, keys, life, transfers
from cairn.http import Request
from cairn.model import Action, CacheChange, CacheControl, Handle, NewBlock, Within


def body(request: Request) -> object:
    return json.loads(b"".join(bytes(piece) for piece in request.body or ()))


class Sent(unittest.TestCase):
    def test_a_put_has_its_options_in_the_query(self) -> None:
        request = keys.put("c", b"\xaa", b"x", priority=3, metadata={"a": 1}, if_exists="error").request
        self.assertEqual(
            request.target, "/v1/caches/c/keys/aa?priority=3&metadata=%7B%22a%22%3A+1%7D&if_exists=error"
        )

    def test_a_write_has_its_options_in_the_header(self) -> None:
        call = keys.write("c", [b"\xaa", "BB"], [b"x", b"y"], parent="cc", ttl_ms=5, if_exists="duplicate")
        head, *rest = call.request.body or ()
        (length,) = struct.unpack("<I", bytes(head)[:4])
        self.assertEqual(
            json.loads(bytes(head)[4 : 4 + length]),
            {"keys": ["aa", "BB"], "parent": "cc", "ttl_ms": 5, "if_exists": "duplicate"},
        )
        self.assertEqual(rest, [b"x", b"y"])

    def test_a_commit_names_each_block(self) -> None:
        handle = Handle("pinned", 7, 3)
        call = life.commit("c", "L", [NewBlock(handle, b"\xaa", parent="bb", priority=9)], release=True)
        block = {"tier": "pinned", "slot": 7, "generation": 3, "key": "aa", "parent": "bb", "priority": 9}
        self.assertEqual(body(call.request), {"lease": "L", "blocks": [block], "release": True})

    def test_a_change_names_only_what_changes(self) -> None:
        call = caches.change_cache("c", CacheChange(offload="never", num_blocks={"pinned": 5}))
        self.assertEqual((call.request.method, call.request.target), ("PATCH", "/v1/caches/c"))
        self.assertEqual(body(call.request), {"offload": "never", "tiers": {"pinned": {"num_blocks": 5}}})

    def test_every_call_that_takes_a_hint_sends_it(self) -> None:
        within: Within = {"within_ms": 5}
        packed = life.match("c", ["aa"], lease_ms=5, reuse=within, session="a b").request
        self.assertEqual(
            packed.target,
            "/v1/caches/c/match?key_bytes=1&lease_ms=5&reuse=%7B%22within_ms%22%3A+5%7D&session=a+b",
        )
        hint_fields = {"reuse": "soon", "session": "s"}
        tokens = life.match_tokens("c", [1], reuse="soon", session="s").request
        self.assertEqual(body(tokens), {"tokens": [1], **hint_fields})
        commit = life.commit("c", "L", [], reuse="soon", session="s").request
        self.assertEqual(body(commit), {"lease": "L", "blocks": [], **hint_fields})
        put = keys.put("c", b"\xaa", b"x", reuse="never", session="s").request
        self.assertEqual(put.target, "/v1/caches/c/keys/aa?reuse=never&session=s")
        release = life.release("L", output_tokens=0, reuse="soon", session="s").request
        self.assertEqual(body(release), {"output_tokens": 0, **hint_fields})
        self.assertEqual(life.release("L").request.method, "DELETE")
        hint = life.hint("c", within, keys=["aa"]).request
        self.assertEqual((hint.target, body(hint)), ("/v1/caches/c/hints", {"keys": ["aa"], "reuse": within}))

    def test_every_call_that_stores_or_releases_takes_cache_control(self) -> None:
        control: CacheControl = {"type": "ephemeral", "ttl": "1h"}
        put = keys.put("c", b"\xaa", b"x", cache_control=control).request
        self.assertIn("cache_control=%7B%22type%22%3A+%22ephemeral%22%2C+%22ttl%22%3A+%221h%22%7D", put.target)
        commit = life.commit("c", "L", [], cache_control=control).request
        self.assertEqual(body(commit), {"lease": "L", "blocks": [], "cache_control": control})
        release = life.release("L", cache_control=control).request
        self.assertEqual(body(release), {"cache_control": control})
        head = keys.write("c", ["aa"], [b"x"], cache_control=control).request.body or ()
        self.assertEqual(json.loads(bytes(head[0])[4:]), {"keys": ["aa"], "cache_control": control})

    def test_an_action_names_its_target(self) -> None:
        request = actions.actions(
            "c", [Action("pin", keys=[b"\xaa"], ttl_ms=5), Action("unpin", session="s", id="a1")]
        ).request
        self.assertEqual(request.target, "/v1/caches/c/actions")
        self.assertEqual(
            body(request),
            {
                "actions": [
                    {"type": "pin", "ttl_ms": 5, "target": {"keys": ["aa"]}},
                    {"type": "unpin", "id": "a1", "target": {"session": "s"}},
                ]
            },
        )

    def test_contains_sends_keys_of_one_length_as_bytes(self) -> None:
        request = actions.contains("c", ["aa", "bb"], shared=True).request
        self.assertEqual(request.target, "/v1/caches/c/contains?key_bytes=1&shared=true")
        self.assertEqual(b"".join(bytes(piece) for piece in request.body or ()), b"\xaa\xbb")
        mixed = actions.contains("c", ["aa", "bbcc"]).request
        self.assertEqual(body(mixed), {"keys": ["aa", "bbcc"]})

    def test_a_release_can_move_blocks_to_another_lease(self) -> None:
        call = life.release("L", [Handle("disk", 1, 2)], to_lease="M")
        self.assertEqual(
            body(call.request), {"blocks": [{"tier": "disk", "slot": 1, "generation": 2}], "to_lease": "M"}
        )

    def test_the_servers_wait_is_added_to_the_timeout(self) -> None:
        self.assertEqual(transfers.drain("c", wait_ms=7000).wait_s, 7.0)
        self.assertEqual(transfers.transfer_state("t", wait_ms=500).wait_s, 0.5)
        self.assertEqual(life.match("c", ["aa"], onboard="pinned", wait_ms=1000).wait_s, 1.0)

    def test_reads_and_renewals_are_idempotent_and_writes_are_not(self) -> None:
        self.assertTrue(life.match("c", ["aa"], lease_ms=0).request.idempotent)
        self.assertFalse(life.match("c", ["aa"], lease_ms=5).request.idempotent)
        self.assertFalse(life.allocate("c", 1).request.idempotent)
        self.assertFalse(life.commit("c", "L", []).request.idempotent)
        self.assertTrue(life.renew("L", 5).request.idempotent)
        self.assertTrue(keys.read("c", ["aa"]).request.idempotent)


if __name__ == "__main__":
    unittest.main()
