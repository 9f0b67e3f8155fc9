"""Hints in an engine's requests."""

import unittest

from cairn.engine.hints import NO_HINT, Hint, hint_of


class Hints(unittest.TestCase):
    def test_other_fields_are_no_hint(self) -> None:
        others: list[object] = [
            None,
            [],
            "never",
            {},
            {"do_remote_prefill": True},
            {"reuse": None, "session": None},
        ]
        for fields in others:
            self.assertEqual(hint_of(fields), NO_HINT)
        self.assertFalse(NO_HINT)

    def test_a_well_formed_hint_is_read(self) -> None:
        self.assertEqual(hint_of({"reuse": "never", "session": "a"}), Hint("never", "a"))
        self.assertEqual(hint_of({"reuse": {"within_ms": 0}, "more": 1}), Hint({"within_ms": 0}))
        self.assertTrue(hint_of({"session": "x" * 128}))

    def test_a_malformed_hint_is_an_error(self) -> None:
        for reuse in (
            "often",
            5,
            {"within_ms": -1},
            {"within_ms": True},
            {"within_ms": 1.5},
            {},
            {"a": 1, "within_ms": 1},
        ):
            with self.assertRaisesRegex(ValueError, "reuse"):
                hint_of({"reuse": reuse})
        for session in ("", "x" * 129, "\u00e9" * 65, 7):
            with self.assertRaisesRegex(ValueError, "session"):
                hint_of({"session": session})


if __name__ == "__main__":
    unittest.main()
