"""Restores a prompt's longest stored prefix into a slot before a request, and saves the slot after it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import mmap
import os
import struct
import time
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cairn.aio import AsyncClient
from cairn.engine.access import Breaker
from cairn.engine.options import Options, Unsupported
from cairn.engine.report import Report
from cairn.errors import CairnError, is_silence
from cairn.llamacpp.blocks import Blocks, WholeStates
from cairn.llamacpp.identity import Identity, identify, seen_of
from cairn.llamacpp.llama import Headers, Llama, LlamaError
from cairn.llamacpp.slots import Slot, Slots, common
from cairn.llamacpp.state import State, StateRefused, read_state, tokens_of

T = TypeVar("T")
log = logging.getLogger(__name__)

# A request waits for Cairn this long, then its prompt is computed.
CAIRN_S = 5.0
# llama-server reads or writes a state between two steps of other slots.
SLOT_S = 60.0
# States on their way to Cairn, each a file of the whole slot. Beyond it a slot is not saved.
MAX_SAVES = 4
# After a failure to learn which model runs, the next try comes this much later.
LEARN_AGAIN_S = 5.0
# Without requests, llama-server is asked this often what it has loaded, and more often until it has loaded it.
WATCH_S, START_S = 5.0, 1.0
FILE_PREFIX = "cairn-"


@dataclass
class Prompt:
    """A request's tokens, and how many of them Cairn holds."""

    tokens: list[int]
    held: int
    model: Model


@dataclass(frozen=True)
class Model:
    """What is loaded in llama-server, its slots, and the prefixes of this model in Cairn."""

    identity: Identity
    slots: Slots
    prefixes: Blocks | WholeStates

    @property
    def is_cut(self) -> bool:
        return self.identity.form is not None

    @property
    def keeps_slots(self) -> bool:
        """llama-server empties idle slots if all slots share one array of cells."""
        form = self.identity.form
        return form is not None and (form.streams > 1 or self.identity.slots == 1)


class PromptCache:
    """The prompts of one llama-server in one Cairn. Used by one event loop. No method raises for a failure of either
    server: the prompt is then computed, and the log says why, once for each reason in ten seconds."""

    def __init__(
        self,
        llama: Llama,
        client: AsyncClient,
        options: Options,
        folder: str,
        block_tokens: int,
        salt: str,
        report: Report,
    ) -> None:
        self._llama = llama
        self._client = client
        self._options = options
        self._folder = folder
        self._block_tokens = block_tokens
        self._salt = salt
        self._report = report
        self._breaker = Breaker(time.monotonic)
        self._model: Model | None = None
        self._learning: asyncio.Task[None] | None = None
        self._learn_at = 0.0
        self._refused: str | None = None
        self._numbers = itertools.count()
        self._saves: set[asyncio.Task[None]] = set()
        self._clear_folder()

    async def watch(self) -> None:
        """Learns which model runs, without end, so that a request seldom waits for that."""
        while True:
            known = await self.model() is not None or self._refused is not None
            await asyncio.sleep(WATCH_S if known else START_S)

    async def model(self) -> Model | None:
        """What llama-server has loaded now; None if that is not known yet, or cannot be kept."""
        try:
            seen = await seen_of(self._llama)
        except LlamaError as error:
            self._report.warn(f"llama-server does not say yet what it has loaded: {error}")
            return None
        if self._model is not None and self._model.identity.seen == seen:
            return self._model
        if self._model is not None:
            self._report.warn("llama-server was started again, or has another model or other adapters")
            self._model = None
        if seen == self._refused:
            return None
        if self._learning is None and time.monotonic() >= self._learn_at:
            self._learning = asyncio.create_task(self._learn(seen))
        if self._learning is not None:
            await asyncio.shield(self._learning)
        return self._model if self._model is not None and self._model.identity.seen == seen else None

    async def look_up(self, model: Model, tokens: list[int]) -> Prompt:
        """How much of a prompt Cairn holds."""
        held = 0
        if len(tokens) > model.prefixes.least_tokens():
            held = await self._ask(0, model.prefixes.held(tokens))
        return Prompt(tokens, held, model)

    async def restore(self, prompt: Prompt, slot: Slot, headers: Headers) -> int:
        """Restores the prompt's prefix, unless the slot has as much. Returns how many tokens the slot has now. Raises
        LlamaError if the slot has the state of another model and cannot be erased."""
        model = prompt.model
        there = common(slot.tokens, prompt.tokens) if model.keeps_slots else 0
        if prompt.held <= there:
            return there
        slot.tokens = ()  # not known until it is restored
        try:
            found = await self._ask(None, model.prefixes.read(prompt.tokens, prompt.held))
        except (ValueError, struct.error) as error:  # a cache of the user's with other blocks
            self._report.warn(f"Cairn's blocks are not those of this model: {error}")
            found = None
        if found is None or found.tokens <= there:
            return 0
        name = self._new_name()
        path = os.path.join(self._folder, name)
        try:
            await asyncio.to_thread(_write, path, found.pieces)
            action = f"/slots/{slot.id}?action=restore"
            got = await self._llama.call("POST", action, {"filename": name}, headers=headers, limit_s=SLOT_S)
        except (LlamaError, OSError, ValueError) as error:
            self._report.warn(f"a state was not restored, so the prompt is computed: {error}")
            return 0
        finally:
            _remove(path)
        if not await self._is_still(model):
            # Another model of this form may have been loaded since the look-up. It must not use the state.
            await self._llama.call("POST", f"/slots/{slot.id}?action=erase", headers=headers, limit_s=SLOT_S)
            self._report.warn("llama-server was started again before a restore, so the prompt is computed")
            return 0
        if got.get("n_restored") != found.restores:
            self._report.warn(f"llama-server restored {got.get('n_restored')} tokens of {found.restores}")
            return 0
        slot.tokens = prompt.tokens[: found.tokens]
        self._report.count("restored_tokens", found.tokens)
        log.debug("slot %d: restored %d of %d tokens", slot.id, found.tokens, len(prompt.tokens))
        return found.tokens

    async def save(self, prompt: Prompt, slot: Slot, headers: Headers) -> None:
        """Lets llama-server write the slot's state. Its way to Cairn continues in the background."""
        slot.tokens = ()
        if len(prompt.tokens) < prompt.model.prefixes.least_tokens():
            return
        if len(self._saves) >= MAX_SAVES:
            self._report.count("saves_skipped")
            self._report.warn(f"{MAX_SAVES} states are on their way to Cairn; further ones are not saved")
            return
        name = self._new_name()
        path = os.path.join(self._folder, name)
        try:
            action = f"/slots/{slot.id}?action=save"
            got = await self._llama.call("POST", action, {"filename": name}, headers=headers, limit_s=SLOT_S)
            data = await asyncio.to_thread(_map, path, got.get("n_written"))
            tokens = tokens_of(data)
        except (LlamaError, OSError, StateRefused) as error:
            self._report.warn(f"a slot was not saved: {error}")
            return
        finally:
            _remove(path)
        if tokens[: len(prompt.tokens)] != prompt.tokens:
            self._report.warn("a slot was not saved: it does not begin with the prompt; was the context shifted?")
            return
        slot.tokens = tokens
        task = asyncio.create_task(self._store(prompt.model, data, tokens))
        self._saves.add(task)
        task.add_done_callback(self._saves.discard)

    def forget_slots(self) -> None:
        """What llama-server's slots hold is not known any more."""
        if self._model is not None:
            self._model.slots.forget()

    async def drained(self) -> None:
        """Waits for the saves that are on their way."""
        while self._saves:
            await asyncio.wait(set(self._saves))

    async def close(self) -> None:
        """Stores what is on its way, and ends what else runs."""
        await self.drained()
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.wait({self._learning})

    async def _store(self, model: Model, data: memoryview, tokens: Sequence[int]) -> None:
        try:
            if not await self._is_still(model):
                return  # another model may have computed this state
            state: State | memoryview = data
            if model.is_cut:
                state = await asyncio.to_thread(read_state, data)
                if state.form != model.identity.form:
                    raise StateRefused("its form is not that of the first state")
            stored = await self._ask(0, model.prefixes.save(state, tokens))
            self._report.count("saved_blocks", stored)
            log.debug("stored %d blocks of a prompt and its answer, %d tokens", stored, len(tokens))
        except StateRefused as error:
            self._report.warn(f"a state is not stored: {error}")
        except Exception:
            self._report.failed("a state could not be stored")

    async def _is_still(self, model: Model) -> bool:
        try:
            return await seen_of(self._llama) == model.identity.seen
        except LlamaError:
            return False

    async def _learn(self, seen: str) -> None:
        try:
            identity = await identify(self._llama, self._folder, self._new_name(), seen, self._salt)
            if await seen_of(self._llama) != seen:
                return
            prefixes: Blocks | WholeStates
            if identity.form is None:
                prefixes = WholeStates(self._client, self._options, identity.salt, self._block_tokens)
                self._report.info("the model has windows or recurrent states: states are stored whole")
            else:
                prefixes = Blocks(self._client, self._options, identity.form, identity.salt, self._block_tokens)
            self._model = Model(identity, Slots(identity.slots), prefixes)
            self._report.info(f"prompts are kept in the cache {prefixes.name}, model {identity.salt[:12]}")
        except (StateRefused, Unsupported) as error:
            self._refused = seen
            self._report.warn(f"prompts of this llama-server are not kept: {error}")
        except OSError as error:
            self._refused = seen
            self._report.warn(f"the folder is not llama-server's --slot-save-path: {error}")
        except LlamaError as error:
            self._report.warn(f"llama-server cannot be used yet: {error}")
        except Exception:
            self._report.failed("llama-server's model could not be learned")
        finally:
            if self._model is None:
                self._learn_at = time.monotonic() + LEARN_AGAIN_S
            self._learning = None

    async def _ask(self, fallback: T, asked: Awaitable[T]) -> T:
        """The answer of Cairn, or `fallback`."""
        if not self._breaker.may_ask():
            _drop(asked)
            return fallback
        try:
            answer = await asked
        except CairnError as error:
            if is_silence(error):
                if self._breaker.silent():
                    self._report.warn(f"Cairn does not answer; prompts are computed: {error}")
            else:
                self._breaker.answered()
                self._report.warn(f"Cairn refused a call: {error}")
            return fallback
        if self._breaker.answered():
            self._report.info("Cairn answers again")
        return answer

    def _new_name(self) -> str:
        return f"{FILE_PREFIX}{os.getpid()}-{next(self._numbers)}.bin"

    def _clear_folder(self) -> None:
        """Removes files that a killed proxy left. Those of another proxy that runs stay."""
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._folder):
                pid = entry.name.removeprefix(FILE_PREFIX).partition("-")[0]
                if entry.name.startswith(FILE_PREFIX) and pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
                    _remove(entry.path)


def _write(path: str, pieces: Iterable[bytes | memoryview]) -> None:
    with open(path, "wb", buffering=1 << 20) as file:
        file.writelines(pieces)


def _map(path: str, written: int | None) -> memoryview:
    """The file's bytes, which stay after it is removed."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size or (written is not None and size != written):
            raise StateRefused(f"the file has {size} bytes of the {written} that were written")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _drop(asked: Awaitable[object]) -> None:
    close = getattr(asked, "close", None)
    if close is not None:
        close()
