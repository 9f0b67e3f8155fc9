"""An engine's KV blocks in torch tensors, one for each layer, on the CPU or a GPU.

A block's bytes are those of its layers one after the other, each in the order of the layer's view `[block, ...]`,
whatever its strides. So engines whose kernels want different strides can share blocks.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from cairn.engine.host_blocks import HostBlocks
from cairn.engine.mover import Copies
from cairn.engine.store import Row


class Unsuitable(ValueError):
    """Layers that do not form blocks of one shape. The text says why."""


class TorchPool:
    """layers: in the model's order, each `[block, ...]`. Raises Unsuitable if they do not form blocks of one
    shape."""

    def __init__(self, layers: Sequence[Any], num_blocks: int) -> None:
        given = [_by_block(layer, num_blocks) for layer in layers]
        first = given[0]
        for layer in given:
            if layer.dtype != first.dtype or layer.shape != first.shape or layer.device != first.device:
                raise Unsuitable(
                    f"the layers have different shapes ({tuple(layer.shape)} {layer.dtype}, "
                    f"{tuple(first.shape)} {first.dtype})"
                )
        self.dtype_bytes: int = first.element_size()
        self.layer_values: int = first[0].numel()
        self.layer_shape: tuple[int, ...] = tuple(first.shape[1:])
        self.num_layers = len(given)
        self._layers = [_integers(layer) for layer in given]
        self._shape = (self.num_layers, *first.shape[1:])
        self._dtype = self._layers[0].dtype
        self._device = first.device
        # Torch has no read-only tensors and warns about read-only rows.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        self._gpu = _Gpu(self._device) if self._device.type == "cuda" else None
        self._cpu = HostBlocks([layer.numpy() for layer in self._layers] if self._gpu is None else [])

    @property
    def block_bytes(self) -> int:
        return self.num_layers * self.layer_values * self.dtype_bytes

    def adopt(self, memory: memoryview) -> None:
        """Registers the memory that rows are in, so that a GPU copies to and from it directly."""
        if self._gpu is not None:
            self._gpu.register(memory)

    def order(self) -> object:
        return None if self._gpu is None else self._gpu.now()

    def fence(self) -> None:
        if self._gpu is not None:
            self._gpu.fence()

    def close(self) -> None:
        self._cpu.close()

    def load(self, blocks: Sequence[int], rows: Sequence[Row], after: object) -> Copies:
        if self._gpu is not None:
            with self._gpu.loading(after):
                staged = torch.empty((len(blocks), *self._shape), dtype=self._dtype, device=self._device)
                for at, row in enumerate(rows):
                    staged[at].copy_(self._tensor(row), non_blocking=True)
                index = torch.tensor(list(blocks), device=self._device)
                for number, layer in enumerate(self._layers):
                    layer.index_copy_(0, index, staged[:, number])
                return self._gpu.loaded()
        self._cpu.load(blocks, rows)
        return _Finished()

    def save(self, blocks: Sequence[int], rows: Sequence[Row]) -> Copies:
        if self._gpu is not None:
            with self._gpu.saving():
                index = torch.tensor(list(blocks), device=self._device)
                staged = torch.stack([layer.index_select(0, index) for layer in self._layers], dim=1)
                for at, row in enumerate(rows):
                    self._tensor(row).copy_(staged[at], non_blocking=True)
                return self._gpu.saved()
        self._cpu.save(blocks, rows)
        return _Finished()

    def _tensor(self, row: Row) -> Any:
        """A row as `[layer, ...]`. Its layers may lie apart, at even distances."""
        flat = torch.frombuffer(row, dtype=self._dtype)
        first = flat[: self.layer_values].view(self._shape[1:])
        apart = (flat.numel() - self.layer_values) // max(self.num_layers - 1, 1)
        return flat.as_strided(self._shape, (apart, *first.stride()))


class _Finished:
    """Copies on a CPU are done when the call returns."""

    def wait(self) -> None:
        return


class _CopyStream:
    """A stream separate from the engine's."""

    def __init__(self, device: Any) -> None:
        self.stream = torch.cuda.Stream(device)
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """If the body fails, waits for the copies that it started: whoever handles the error may let others write
        to the same memory."""
        with self.lock, torch.cuda.stream(self.stream):
            try:
                yield
            except BaseException:
                self.stream.synchronize()
                raise


class _Gpu:
    """Our streams on a GPU, and their order relative to the engine's."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._loads = _CopyStream(device)
        self._saves = _CopyStream(device)
        self._last_save: Any = None
        self._registered: memoryview | None = None  # the tier's memory; this keeps it mapped

    def register(self, memory: memoryview) -> None:
        """Replaces what was registered before: after its restart the server has other memory."""
        runtime = torch.cuda.cudart()
        with self._loads.lock, self._saves.lock, torch.cuda.device(self._device):
            if self._registered is not None:
                for one in (self._loads, self._saves):
                    one.stream.synchronize()
                runtime.cudaHostUnregister(_address(self._registered))
                self._registered = None
            result = runtime.cudaHostRegister(_address(memory), memory.nbytes, 0)
            if int(result) != 0:
                raise Unsuitable(f"the tier's memory cannot be registered with the GPU: CUDA error {int(result)}")
            self._registered = memory

    def now(self) -> object:
        return torch.cuda.current_stream(self._device).record_event()

    def fence(self) -> None:
        if self._last_save is not None:
            torch.cuda.current_stream(self._device).wait_event(self._last_save)
            self._last_save = None

    @contextlib.contextmanager
    def loading(self, after: object) -> Iterator[None]:
        with self._loads.copying():
            self._loads.stream.wait_event(after)
            yield

    def loaded(self) -> Copies:
        return _Event(self._loads.stream.record_event())

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        engine = torch.cuda.current_stream(self._device)
        with self._saves.copying():
            self._saves.stream.wait_stream(engine)
            yield

    def saved(self) -> Copies:
        self._last_save = self._saves.stream.record_event()
        return _Event(self._last_save)


class _Event:
    def __init__(self, event: Any) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()


def _address(memory: memoryview) -> int:
    return int(torch.frombuffer(memory, dtype=torch.uint8).data_ptr())


def _integers(layer: Any) -> Any:
    """The same memory as integers, because neither numpy nor torch's indexed copies support all of torch's
    types."""
    return layer.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[layer.element_size()])


def _by_block(layer: Any, num_blocks: int) -> Any:
    """The layer as `[block, ...]`. A kernel may split a block into several of its own, or keep keys and values
    apart in a first dimension of 2."""
    if layer.shape[0] == num_blocks:
        return layer
    if layer.dim() > 1 and layer.shape[0] == 2 and layer.shape[1] == num_blocks:
        return layer.transpose(0, 1)
    if layer.shape[0] % num_blocks == 0 and layer.shape[0] > 0:
        return layer.unflatten(0, (num_blocks, layer.shape[0] // num_blocks))
    raise Unsuitable(f"a layer has the shape {tuple(layer.shape)}, which does not fit {num_blocks} blocks")
