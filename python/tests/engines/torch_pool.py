"""Copies between torch tensors and rows. Run it with the environment's Python."""

from __future__ import annotations

import gc
import mmap
import random
import unittest
import weakref
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from fake_cuda import FakeCuda

from cairn.engine.torch_pool import TorchPool, Unsuitable, _Gpu
from cairn.tier_map import Rows

BLOCKS, HEADS, TOKENS, WIDTH, LAYERS = 24, 2, 8, 16, 3
VALUES = HEADS * TOKENS * WIDTH


def contiguous(dtype: torch.dtype) -> Any:
    return torch.zeros(BLOCKS, HEADS, TOKENS, WIDTH).to(dtype)


def tokens_first(dtype: torch.dtype) -> Any:
    """The same view, of blocks in whose memory tokens come before heads."""
    return torch.zeros(BLOCKS, TOKENS, HEADS, WIDTH).to(dtype).transpose(1, 2)


def keys_apart(dtype: torch.dtype) -> Any:
    """Keys and values apart in the first dimension, blocks in the second."""
    return torch.zeros(2, BLOCKS, HEADS // 2, TOKENS, WIDTH).to(dtype)


def cut(dtype: torch.dtype) -> Any:
    """Each block is two blocks of the kernel."""
    return torch.zeros(BLOCKS * 2, HEADS, TOKENS // 2, WIDTH).to(dtype)


class TorchPools(unittest.TestCase):
    def rows(self, memory: bytearray, slots: Sequence[int], size: int) -> Rows:
        return Rows(memoryview(memory), [slot * size for slot in slots], size)

    def test_a_row_has_a_blocks_layers_whatever_the_strides(self) -> None:
        self.copies_are_right()

    def test_a_row_has_a_blocks_layers_if_two_threads_copy(self) -> None:
        with mock.patch("cairn.engine.copy_helper.SHARED_BYTES", 0):
            self.copies_are_right()

    def test_no_copy_runs_after_one_failed(self) -> None:
        with mock.patch("cairn.engine.copy_helper.SHARED_BYTES", 0):
            pool = TorchPool([contiguous(torch.float32) for _ in range(LAYERS)], BLOCKS)
            size = pool.block_bytes
            with self.assertRaises(IndexError):  # the engine does not have this block
                pool.load([1, BLOCKS + 5], self.rows(bytearray(9 * size), [3, 8], size), None)
            pool.load([1, 2], self.rows(bytearray(9 * size), [3, 8], size), None).wait()
            pool.close()

    def test_a_row_has_a_blocks_layers_if_a_gpu_copies(self) -> None:
        with mock.patch.object(torch, "cuda", FakeCuda()):
            self.copies_are_right(on_gpu)

    def copies_are_right(self, prepared: Callable[[TorchPool], object] = lambda pool: None) -> None:
        values = random.Random(1)
        for make in (contiguous, tokens_first, keys_apart, cut):
            for dtype in (torch.bfloat16, torch.float32, torch.float8_e4m3fn):
                with self.subTest(make=make.__name__, dtype=dtype):
                    layers = [make(dtype) for _ in range(LAYERS)]
                    pool = TorchPool(layers, BLOCKS)
                    after = prepared(pool)
                    size = pool.block_bytes
                    self.assertEqual(size, LAYERS * VALUES * dtype.itemsize)
                    memory = bytearray(values.randbytes(BLOCKS * size))
                    # Scattered blocks, consecutive blocks, and a single one.
                    slots, blocks = [7, 2, 3, 4, 11], [5, 20, 1, 2, 9]
                    rows = self.rows(memory, slots, size)
                    pool.load(blocks, Rows(rows.memory.toreadonly(), rows.offsets, size), after).wait()
                    back = bytearray(len(memory))
                    pool.save(blocks[::-1], self.rows(back, slots[::-1], size)).wait()
                    for slot, block in zip(slots, blocks, strict=True):
                        row = memory[slot * size : (slot + 1) * size]
                        self.assertEqual(back[slot * size : (slot + 1) * size], row)
                        self.assertEqual(self.content(layers, make, block), bytes(row))
                    untouched = [block for block in range(BLOCKS) if block not in blocks]
                    self.assertEqual({self.content(layers, make, block) for block in untouched}, {bytes(size)})
                    untouched = [slot for slot in range(BLOCKS) if slot not in slots]
                    self.assertEqual(
                        {bytes(back[slot * size : (slot + 1) * size]) for slot in untouched}, {bytes(size)}
                    )

    def content(self, layers: list[Any], make: Any, block: int) -> bytes:
        if make is keys_apart:
            parts = [layer[:, block] for layer in layers]
        elif make is cut:
            parts = [layer[2 * block : 2 * block + 2] for layer in layers]
        else:
            parts = [layer[block] for layer in layers]
        return b"".join(part.contiguous().view(torch.uint8).numpy().tobytes() for part in parts)

    def test_layers_of_different_shapes_are_refused(self) -> None:
        with self.assertRaisesRegex(Unsuitable, "float32"):
            TorchPool([contiguous(torch.float32), contiguous(torch.bfloat16)], BLOCKS)


def on_gpu(pool: TorchPool) -> object:
    """Makes the pool copy as if its layers were on a GPU."""
    torch.cuda._names = iter(("loads", "saves"))
    pool._gpu = _Gpu(torch.device("cpu"))
    return pool.order()


class OnAGpu(unittest.TestCase):
    """The order of copies and events, with a fake of torch.cuda; the copies themselves are torch's."""

    def setUp(self) -> None:
        self.cuda = FakeCuda()
        patched = mock.patch.object(torch, "cuda", self.cuda)
        patched.start()
        self.addCleanup(patched.stop)
        self.pool = TorchPool([contiguous(torch.float32) for _ in range(LAYERS)], BLOCKS)
        self.after = on_gpu(self.pool)
        self.size = self.pool.block_bytes

    def rows(self, *slots: int) -> Rows:
        return Rows(memoryview(bytearray(BLOCKS * self.size)), [slot * self.size for slot in slots], self.size)

    def test_a_load_runs_after_the_engines_work_and_is_waited_for(self) -> None:
        with self.cuda:
            copies = self.pool.load([3, 4], self.rows(1, 2), self.after)
        copies.wait()
        self.assertEqual(self.cuda.log, ["loads behind engine.1", "copy on loads", "wait for loads.1"])

    def test_a_save_runs_after_the_engines_work_and_before_its_next(self) -> None:
        with self.cuda:
            copies = self.pool.save([3, 4], self.rows(1, 2))
            again = self.pool.save([5], self.rows(3))
        self.assertEqual(self.cuda.log, ["saves behind engine", "copy on saves"] * 2)
        self.cuda.log.clear()
        self.pool.fence()
        self.pool.fence()  # a second fence waits for nothing more
        copies.wait()
        again.wait()
        self.assertEqual(self.cuda.log, ["engine behind saves.2", "wait for saves.1", "wait for saves.2"])

    def test_a_failure_leaves_no_copy_running(self) -> None:
        with self.assertRaises(IndexError):
            self.pool.load([3, BLOCKS + 1], self.rows(1, 2), self.after)
        self.assertEqual(self.cuda.log[-1], "wait for loads")
        with self.assertRaises(IndexError):
            self.pool.save([3, BLOCKS + 1], self.rows(1, 2))
        self.assertEqual(self.cuda.log[-1], "wait for saves")
        with self.cuda:
            self.pool.load([3], self.rows(1), self.after)  # the next load succeeds

    def test_memory_of_a_restarted_server_replaces_the_registered_memory(self) -> None:
        mapped = []
        for _ in range(3):
            memory = mmap.mmap(-1, 1 << 16)
            mapped.append(weakref.ref(memory))
            self.pool.adopt(memoryview(memory))
        self.assertEqual(
            self.cuda.log,
            ["register", *["wait for loads", "wait for saves", "unregister", "register"] * 2],
        )
        # It stays mapped while it is registered, so that no other memory gets its address.
        del memory
        gc.collect()
        self.assertEqual([one() is None for one in mapped], [True, True, False])
        self.assertEqual(len(self.cuda.registered), 1)

    def test_memory_that_cannot_be_registered_is_refused(self) -> None:
        memory = memoryview(bytearray(1 << 16))
        with (
            mock.patch.object(self.cuda, "cudaHostRegister", return_value=2),
            self.assertRaisesRegex(Unsuitable, "2"),
        ):
            self.pool.adopt(memory)


if __name__ == "__main__":
    unittest.main(verbosity=2)
