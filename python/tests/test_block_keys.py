"""The keys of blocks, and the shapes and names of their caches."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import unittest
from collections.abc import Sequence

from cairn.engine.keys import Identity, KeyChain, Rank
from cairn.engine.options import Unsupported, flat_shape
from cairn.model import Shape
from server import ROOT

TOKENS = list(range(100))

TOKENS = list(range(100))


def keys(tokens: Sequence[int], request: object = None, root: bytes = b"r" * 32) -> list[bytes]:
    return KeyChain(root, 4, request).extend(tokens)


class Keys(unittest.TestCase):
    def test_keys_are_the_same_in_every_process(self) -> None:
        code = "from test_block_keys import *; print(keys(TOKENS, {'salt': 'a', 'lora': None})[-1].hex())"
        path = f"{ROOT / 'python' / 'src'}:{ROOT / 'python' / 'tests'}"
        for seed in ("0", "1"):
            done = subprocess.run(
                [sys.executable, "-B", "-c", code],
                env={"PYTHONPATH": path, "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            )
            self.assertEqual(done.stdout.strip(), keys(TOKENS, {"lora": None, "salt": "a"})[-1].hex())

    def test_a_key_is_the_hash_of_parent_extra_and_tokens(self) -> None:
        first = hashlib.sha256(b"r" * 32 + bytes(4) + b"".join(t.to_bytes(4, "little") for t in range(4)))
        self.assertEqual(keys(TOKENS[:7]), [first.digest()])

    def test_keys_differ_by_everything_that_the_bytes_depend_on(self) -> None:
        chains = [
            keys(TOKENS),
            keys([1, *TOKENS[1:]]),
            keys(TOKENS, root=b"s" * 32),
            keys(TOKENS, {"salt": "a", "lora": None}),
            keys(TOKENS, {"salt": None, "lora": ["a", ""]}),
            KeyChain(b"r" * 32, 4).extend(TOKENS, lambda begin, end: ["image", -begin] if begin < 8 else None),
            KeyChain(b"r" * 32, 4).extend(TOKENS, lambda begin, end: ["image", 1 - begin] if begin < 8 else None),
        ]
        for number in range(25):
            self.assertEqual(len({chain[number] for chain in chains}), len(chains))

    def test_keys_grow_with_the_tokens(self) -> None:
        chain = KeyChain(b"r" * 32, 4)
        for length in (0, 3, 4, 5, 50, 100):
            self.assertEqual(chain.extend(TOKENS[:length]), keys(TOKENS[:length]))

    def test_a_caches_name_depends_on_everything_that_must_agree(self) -> None:
        facts = {"dtype": "bfloat16", "block_tokens": 16}
        name = Identity("/models/Llama 3 8B", facts).cache_name(Rank(1, 2))
        self.assertRegex(name, r"^Llama-3-8B\.[0-9a-f]{16}\.tp1of2\.pp0of1$")
        self.assertEqual(
            name, Identity("/models/Llama 3 8B", dict(reversed(facts.items()))).cache_name(Rank(1, 2))
        )
        others = {
            Identity("/models/Llama 3 8B", {**facts, "dtype": "float16"}).cache_name(Rank(1, 2)),
            Identity("/other/Llama 3 8B", facts).cache_name(Rank(1, 2)),
            Identity("/models/Llama 3 8B", facts).cache_name(Rank(0, 2)),
        }
        self.assertEqual(len(others | {name}), 4)
        self.assertLessEqual(len(Identity("m" * 500, {}).cache_name(Rank(1000, 1000, 1000, 1000))), 64)


class Shapes(unittest.TestCase):
    def test_a_block_of_any_size_gets_a_shape_that_the_server_accepts(self) -> None:
        self.assertEqual(flat_shape(100), Shape(1, 1, 1, 50, 2))
        self.assertEqual(flat_shape(101), Shape(1, 1, 1, 101, 1))
        self.assertEqual(flat_shape(1 << 24), Shape(1, 1, 1, 1 << 23, 2))
        # LMCache's objects of 256 tokens with 256 KiB each, and a size that is not a power of two.
        self.assertEqual(flat_shape(64 << 20), Shape(1, 1, 2, 1 << 24, 2))
        self.assertEqual(flat_shape(27 * 1_000_003), Shape(1, 1, 3, 9 * 1_000_003, 1))
        with self.assertRaisesRegex(Unsupported, "rows"):
            flat_shape((1 << 31) - 1)  # a prime


if __name__ == "__main__":
    unittest.main()
