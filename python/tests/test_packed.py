"""The packed binary forms, compared with bytes written by hand."""

import unittest

from cairn import packed
from cairn.errors import BadAnswer
from cairn.model import Handle, MatchedBlock

LEASE = bytes(range(16))
ANSWER = (
    (2).to_bytes(4, "little")
    + bytes(4)
    + LEASE
    + (1234).to_bytes(8, "little")
    + b"\x01\0\0\0"
    + (7).to_bytes(4, "little")
    + (3).to_bytes(8, "little")
    + b"\x02\0\0\0"
    + (8).to_bytes(4, "little")
    + (1 << 40).to_bytes(8, "little")
)


class Packed(unittest.TestCase):
    def test_a_match_has_the_requested_keys(self) -> None:
        match = packed.read_match(bytearray(ANSWER), [b"a", b"b", b"c"])
        self.assertEqual((match.matched, match.lease, match.expires_at_ms), (2, LEASE.hex(), 1234))
        self.assertEqual(
            match.blocks, [MatchedBlock("pinned", 7, 3, b"a"), MatchedBlock("disk", 8, 1 << 40, b"b")]
        )

    def test_blocks_of_the_shared_tier_are_counted_separately(self) -> None:
        answer = bytearray(ANSWER + b"\x03" + bytes(15))
        answer[:4] = (3).to_bytes(4, "little")
        match = packed.read_match(answer, [b"a", b"b", b"c"])
        self.assertEqual((match.matched, match.shared_matched, len(match.blocks)), (2, 1, 2))

    def test_an_allocation(self) -> None:
        slots = packed.read_allocation(bytearray(ANSWER))
        self.assertEqual(slots.blocks, [Handle("pinned", 7, 3), Handle("disk", 8, 1 << 40)])

    def test_a_lease_of_zeros_is_decoded_as_none(self) -> None:
        self.assertIsNone(packed.read_match(bytearray(32), []).lease)

    def test_a_length_that_contradicts_the_count_is_refused(self) -> None:
        for wrong in (ANSWER[:-1], ANSWER + b"x", ANSWER[:20]):
            with self.assertRaises(BadAnswer):
                packed.read_allocation(bytearray(wrong))

    def test_keys_of_equal_length_are_packed_end_to_end(self) -> None:
        self.assertEqual(packed.packed_keys([b"ab", b"cd"]), (2, b"abcd"))
        self.assertIsNone(packed.packed_keys([b"ab", b"c"]))
        self.assertIsNone(packed.packed_keys(["6162", b"cd"]))
        self.assertEqual(packed.packed_keys(["6162", "6364"]), (2, b"abcd"))
        # Its hex has as many characters as the other key has bytes.
        self.assertIsNone(packed.packed_keys(["6162", b"abcd"]))
        self.assertIsNone(packed.packed_keys([]))
        self.assertIsNone(packed.packed_keys([b""]))

    def test_an_unknown_tier_is_refused(self) -> None:
        with self.assertRaisesRegex(BadAnswer, "tier 4"):
            packed.read_allocation(bytearray(ANSWER[:48] + b"\x04" + ANSWER[49:]))


if __name__ == "__main__":
    unittest.main()
