"""Wrong arguments of callers are refused with a clear error before anything is sent."""

from __future__ import annotations

import array
import asyncio
import ctypes
import gc
import unittest
from typing import Any

from cairn import AsyncClient, NewBlock, TierView
from cairn.calls import actions, agents, caches, keys, life, transfers
from cairn.errors import CairnError, WrongArgument
from cairn.http import flat
from cairn.model import MAX_KEYS, Handle, Shape, key_bytes, key_hex
from server import PATIENCE_S, SHAPE, ServerCase, block, key

NO_KEYS: list[tuple[Any, str]] = [
    (5, "type int"),
    (True, "type bool"),
    (1.5, "type float"),
    (None, "type NoneType"),
    ([1, 2], "type list"),
    (b"", "1 to 64 bytes, not 0"),
    (b"x" * 65, "1 to 64 bytes, not 65"),
    ("", "1 to 64 bytes, not 0"),
    ("abc", "hex digits, not 'abc'"),
    ("0xaa", "hex digits, not '0xaa'"),
    ("aa bb", "hex digits, not 'aa bb'"),
    ("key", "hex digits, not 'key'"),
]


class Tensor:
    """The part of torch's tensor that is asked for its memory, which lives as long as it does."""

    def __init__(
        self, data: bytes, *, place: str = "cpu", contiguous: bool = True, conjugate: bool = False
    ) -> None:
        self._memory = ctypes.create_string_buffer(data, len(data))
        self.device = Device(place)
        self._contiguous, self._conjugate = contiguous, conjugate

    def __del__(self) -> None:
        ctypes.memset(self._memory, 0, len(self._memory))

    def data_ptr(self) -> int:
        return ctypes.addressof(self._memory)

    def numel(self) -> int:
        return len(self._memory)

    def element_size(self) -> int:
        return 1

    def is_contiguous(self) -> bool:
        return self._contiguous

    def is_conj(self) -> bool:
        return self._conjugate

    def is_neg(self) -> bool:
        return False


class Device(str):
    @property
    def type(self) -> str:
        return self.partition(":")[0]


class Keys(unittest.TestCase):
    def test_every_call_refuses_an_invalid_key(self) -> None:
        handle = Handle("pinned", 0, 1)
        calls: dict[str, Any] = {
            "put": lambda one: keys.put("c", one, b""),
            "get": lambda one: keys.get("c", one),
            "read": lambda one: keys.read("c", [one]),
            "write": lambda one: keys.write("c", [one], [b""]),
            "match": lambda one: life.match("c", [one]),
            "match of several": lambda one: life.match("c", [b"a", one]),
            "match with a wait": lambda one: life.match("c", [one], onboard="pinned", wait_ms=1),
            "commit": lambda one: life.commit("c", "l", [NewBlock(handle, one)]),
            "hint": lambda one: life.hint("c", "soon", keys=[one]),
            "evict": lambda one: caches.evict("c", [one]),
            "metadata": lambda one: caches.metadata("c", one),
            "transfer": lambda one: transfers.transfer("c", [one], "disk"),
            "agree": lambda one: transfers.agree("g", "c", [one]),
            "load": lambda one: agents.load("c", [one], "a", [0]),
        }
        for name, call in calls.items():
            for one, why in NO_KEYS:
                with self.subTest(name, key=one), self.assertRaisesRegex(WrongArgument, why):
                    call(one)

    def test_an_invalid_parent_is_refused(self) -> None:
        for call in (
            lambda: keys.put("c", "aa", b"", parent=7),  # type: ignore[arg-type]
            lambda: keys.write("c", ["aa"], [b""], parents=[7]),  # type: ignore[list-item]
            lambda: life.commit("c", "l", [NewBlock(Handle("pinned", 0, 1), "aa", parent=7)]),  # type: ignore[arg-type]
        ):
            with self.assertRaisesRegex(WrongArgument, "type int"):
                call()

    def test_one_key_in_place_of_a_list_is_refused(self) -> None:
        for one in ("aa01", b"\xaa\x01", bytearray(b"\xaa\x01")):
            for call in (
                lambda: life.match("c", one),  # type: ignore[arg-type]
                lambda: keys.read("c", one),  # type: ignore[arg-type]
                lambda: keys.write("c", one, [b""]),  # type: ignore[arg-type]
                lambda: actions.contains("c", one),  # type: ignore[arg-type]
                lambda: life.hint("c", "never", keys=one),  # type: ignore[arg-type]
            ):
                with self.assertRaisesRegex(WrongArgument, "a list of keys, not the single key .*aa"):
                    call()

    def test_any_bytes_like_and_hex_in_either_case_are_keys(self) -> None:
        forms: list[Any] = [b"\xab\x01", bytearray(b"\xab\x01"), memoryview(b"\xab\x01"), "ab01", "AB01"]
        for one in forms:
            self.assertEqual((key_bytes(one), key_hex(one).lower()), (b"\xab\x01", "ab01"))

    def test_a_wrong_argument_is_also_a_type_error_and_a_value_error(self) -> None:
        for kind in (CairnError, TypeError, ValueError):
            with self.assertRaises(kind):
                key_bytes(5)  # type: ignore[arg-type]


class Prompts(unittest.TestCase):
    """Prompts with more keys than one request may name."""

    def test_only_the_first_keys_are_sent(self) -> None:
        prompt = [number.to_bytes(4, "big") for number in range(MAX_KEYS + 1)]
        for body, size in (
            (life.match("c", prompt).request.body, MAX_KEYS * 4),
            (life.match("c", [*prompt[:-1], b"x"]).request.body, MAX_KEYS * 4),
            (life.match("c", prompt, wait_ms=1).request.body, len('{"keys":[],"wait_ms":1}') + MAX_KEYS * 11 - 1),
            (keys.read("c", prompt).request.body, len('{"keys":[]}') + MAX_KEYS * 11 - 1),
        ):
            assert body is not None
            self.assertEqual(sum(len(piece) for piece in body), size)


class LongPrompts(ServerCase):
    def test_a_prompt_longer_than_a_request_is_matched_and_read(self) -> None:
        self.make()
        self.client.write(self.name, [key(0), key(1)], [block(0), block(1)])
        prompt = [key(number) for number in range(MAX_KEYS + 10)]
        self.assertEqual(self.client.match(self.name, prompt, lease_ms=0).matched, 2)
        self.assertEqual(self.client.match(self.name, prompt, lease_ms=0, wait_ms=1).matched, 2)
        self.assertEqual(self.client.read(self.name, prompt).matched, 2)
        with TierView(self.client, self.name).read(prompt) as held:
            self.assertEqual(len(held), 2)


class Data(ServerCase):
    def test_buffers_of_any_type_are_stored_in_memory_order(self) -> None:
        self.make()
        given = array.array("H", block(1))
        for number, data in enumerate((given, memoryview(given), bytearray(block(1)), memoryview(block(1)))):
            self.client.put(self.name, key(number), data)  # type: ignore[arg-type]
            self.assertEqual(self.client.get(self.name, key(number)), block(1))
        self.client.write(self.name, [key(8), key(9)], [given, block(2)])  # type: ignore[list-item]
        self.assertEqual(bytes(self.client.read(self.name, [key(8), key(9)]).data), block(1) + block(2))

    def test_large_buffers_are_stored_and_by_asyncio_too(self) -> None:
        shape = Shape(2, 2, 4, 1 << 15, 2)  # more than is sent in one piece
        self.make(shape=shape)
        expected = block(1, shape)
        given = memoryview(array.array("H", expected))

        async def put() -> None:
            async with AsyncClient(self.server.unix, timeout=PATIENCE_S) as client:
                await client.put(self.name, key(1), given)

        asyncio.run(put())
        self.client.put(self.name, key(2), given)
        for number in (1, 2):
            self.assertTrue(self.client.get(self.name, key(number)) == expected)

    def test_anything_but_a_buffer_is_refused_by_type(self) -> None:
        for data, why in (
            (256, "type int"),
            ("x", "type str"),
            (None, "type NoneType"),
            ([1, 2], "type list"),
            (memoryview(bytes(512))[::2], "a memoryview that is not C-contiguous"),
            (memoryview(bytes(512))[::-1], "a memoryview that is not C-contiguous"),
        ):
            with self.subTest(why):
                with self.assertRaisesRegex(WrongArgument, f"the data (is|has).*{why}"):
                    self.client.put(self.name, "aa", data)  # type: ignore[arg-type]
                with self.assertRaisesRegex(WrongArgument, f"a piece of the data (is|has).*{why}"):
                    self.client.write(self.name, ["aa"], [data])  # type: ignore[list-item]
        with self.assertRaisesRegex(WrongArgument, "a piece of the data has type int"):
            self.client.write(self.name, ["aa"], bytes(256))  # type: ignore[arg-type]

    def test_arrays(self) -> None:
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not installed")
        self.make()
        whole = numpy.frombuffer(block(1), "u2").reshape(2, 2, 4, 8)
        self.client.put(self.name, key(1), whole)
        self.assertEqual(self.client.get(self.name, key(1)), block(1))
        wrong: list[tuple[Any, str]] = [
            (whole.transpose(1, 0, 2, 3), "not C-contiguous"),
            (numpy.asfortranarray(whole), "not C-contiguous"),
            (whole[:, :, ::2], "not C-contiguous"),
            (numpy.array([None] * 32), "ndarray of Python objects"),
            (numpy.zeros(32, [("a", "u1"), ("b", "O")]), "ndarray of Python objects"),
            (numpy.zeros(32, "M8[s]"), "type ndarray"),
        ]
        for data, why in wrong:
            with self.subTest(why), self.assertRaisesRegex(WrongArgument, why):
                self.client.put(self.name, key(2), data)
        no_keys: list[Any] = [numpy.int64(5), numpy.zeros(4, "u1")]
        for number in no_keys:
            with self.assertRaisesRegex(WrongArgument, "type (int64|ndarray)"):
                self.client.put(self.name, number, whole)
        self.assertEqual(flat(numpy.zeros((0, 4))).nbytes, 0)
        self.assertEqual(flat(numpy.zeros(4, [("O", "u1"), ("b", ">u2")])).nbytes, 12)
        self.assertEqual(SHAPE.block_bytes, whole.nbytes)

    def test_tensors(self) -> None:
        self.make()
        tensor = Tensor(block(1))
        self.client.put(self.name, key(1), tensor)  # type: ignore[arg-type]
        self.assertEqual(self.client.get(self.name, key(1)), block(1))
        self.assertEqual(flat(Tensor(b"")).nbytes, 0)
        wrong = [
            ({"place": "cuda:0"}, r"a tensor on cuda:0; copy it with .cpu\(\)"),
            ({"contiguous": False}, r"not C-contiguous; use .contiguous\(\)"),
            ({"conjugate": True}, "not resolved"),
        ]
        for how, why in wrong:
            with self.subTest(why), self.assertRaisesRegex(WrongArgument, why):
                self.client.put(self.name, key(2), Tensor(block(2), **how))  # type: ignore[arg-type]

    def test_the_bytes_of_a_tensor_keep_the_tensor(self) -> None:
        view = flat(Tensor(b"text"))
        gc.collect()
        self.assertEqual(bytes(view), b"text")

    def test_tensors_of_torch(self) -> None:
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        self.make()
        whole = torch.frombuffer(bytearray(block(1)), dtype=torch.bfloat16).reshape(2, 2, 4, 8)
        self.client.put(self.name, key(1), whole)
        self.assertEqual(self.client.get(self.name, key(1)), block(1))
        for tensor in (whole.transpose(0, 1), whole[:, :, ::2], torch.zeros(2, dtype=torch.cfloat).conj()):
            with self.assertRaises(WrongArgument):
                self.client.put(self.name, key(2), tensor)


if __name__ == "__main__":
    unittest.main()
