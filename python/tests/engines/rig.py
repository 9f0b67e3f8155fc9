"""Runs engines in their own processes, and makes models and prompts for them."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "src")]

from cairn.model import Tier  # noqa: E402
from server import PATIENCE_S, Server  # noqa: E402

HERE = Path(__file__).resolve().parent
BLOCK_TOKENS = 32  # the smallest that vLLM supports on a CPU
# An engine needs a minute for its imports on a loaded machine, and minutes to compute. Anything that takes longer
# hangs.
ANSWER_S = 900


def python() -> str:
    """The environment's Python."""
    return os.environ["CAIRN_ENGINE_PYTHON"]


def is_long() -> bool:
    """Whether to run the long tests, with as many requests, kills and tokens as the documentation describes."""
    return os.environ.get("CAIRN_ENGINES_LONG") == "1"


def prompt(seed: int, tokens: int) -> list[int]:
    values = random.Random(seed)
    return [values.randrange(3, 2000) for _ in range(tokens)]


def full_blocks(tokens: int) -> int:
    """How many blocks of a prompt can be loaded: the engine always computes the last token."""
    return (tokens - 1) // BLOCK_TOKENS


def make_model(folder: Path, layers: int, hidden: int, *kind: str) -> Path:
    subprocess.run(
        [python(), str(HERE / "tiny_model.py"), str(folder), str(layers), str(hidden), *kind], check=True
    )
    return folder


class Engine:
    """An engine, by default a vLLM, in its own process. If it ends unexpectedly, its log is shown."""

    SCRIPT = "vllm_engine.py"

    def __init__(
        self,
        model: Path,
        log: Path,
        connector: dict[str, Any] | None = None,
        *,
        environment: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.log = log
        self._answers = b""
        given = {
            **os.environ,
            "PYTHONPATH": f"{os.environ.get('PYTHONPATH', HERE.parents[1] / 'src')}:{HERE}",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            **(environment or {}),
        }
        given.pop("PYTHONHASHSEED", None)
        with open(log, "wb") as out:
            self.child = subprocess.Popen(
                [python(), "-B", str(HERE / self.SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                env=given,
                start_new_session=True,
            )
        self._send({"model": str(model), "connector": connector, "options": options})

    def started(self) -> Engine:
        """Waits until it accepts requests. Construct several engines first to start them in parallel."""
        self._answer()
        return self

    def generate(self, *prompts: list[int], max_tokens: int = 8, **more: Any) -> dict[str, Any]:
        self._send({"prompts": list(prompts), "max_tokens": max_tokens, **more})
        return self._answer()

    def kill(self) -> None:
        """Kills all its processes at once, as when a container is killed."""
        os.killpg(self.child.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        assert self.child.stdin is not None and self.child.stdout is not None
        try:
            self.child.stdin.close()
            self.child.wait(PATIENCE_S)
        finally:
            if self.child.returncode is None:
                os.killpg(self.child.pid, signal.SIGKILL)
                self.child.wait()
            self.child.stdout.close()

    def _send(self, work: dict[str, Any]) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(work).encode() + b"\n")
        self.child.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        deadline = time.monotonic() + ANSWER_S
        while b"\n" not in self._answers:
            ready, _, _ = select.select([self.child.stdout], [], [], max(deadline - time.monotonic(), 0))
            piece = os.read(self.child.stdout.fileno(), 1 << 16) if ready else b""
            if not piece:
                why = "ended" if ready else f"said nothing for {ANSWER_S} s"
                raise AssertionError(f"the engine {why}:\n{self.log.read_text()[-6000:]}")
            self._answers += piece
        line, self._answers = self._answers.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer


def connector(url: str, role: str = "kv_both", **more: Any) -> dict[str, Any]:
    return {
        "kv_connector": "CairnConnector",
        "kv_connector_module_path": "cairn.vllm",
        "kv_role": role,
        "kv_connector_extra_config": {"cairn.url": url, **more},
    }


class EngineCase(unittest.TestCase):
    """A server for each test, one model for all, and an engine without a connector for the expected answers."""

    # Values of 4 bytes: different ways to compute the same differ too little to change a token.
    DEFAULTS: dict[str, Any] = {"max_model_len": 4096, "block_size": BLOCK_TOKENS, "dtype": "float32"}  # noqa: RUF012

    LAYERS, HIDDEN = 3, 256
    KIND: tuple[str, ...] = ()  # of the model, an argument of `tiny_model.py`
    ENGINE = Engine
    OPTIONS: dict[str, Any] = {}  # noqa: RUF012
    SIZES = {"cairn.pinned_bytes": 128 << 20, "cairn.disk_bytes": 128 << 20}  # noqa: RUF012
    folder: Path
    model: Path
    _plain: Engine | None = None

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="cairn-engines-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cls.make_model()

    @classmethod
    def make_model(cls) -> None:
        cls.model = make_model(cls.folder / "tiny", cls.LAYERS, cls.HIDDEN, *cls.KIND)

    @classmethod
    def tearDownClass(cls) -> None:
        if cls._plain is not None:
            cls._plain.close()

    @classmethod
    def runs_here(cls) -> bool:
        """Whether the engine without Cairn runs on this machine: it needs vector instructions that some CPUs
        lack."""
        try:
            cls.setUpClass()
            engine = cls.ENGINE(cls.model, cls.folder / "probe.log", None, **{**cls.DEFAULTS, **cls.OPTIONS})
            try:
                engine.started().generate(prompt(0, 64))
            finally:
                engine.close()
        except (AssertionError, OSError, subprocess.SubprocessError) as why:
            print(why, file=sys.stderr)
            return False
        finally:
            cls.doClassCleanups()
        return True

    def setUp(self) -> None:
        self.server = self.make_server()
        self.addCleanup(self.server.close)

    def make_server(self) -> Server:
        return Server()

    def begin(self, **more: Any) -> Engine:
        """Starts an engine that uses the server. `url`, `role` and sizes are the connector's options, the rest are
        vLLM's."""
        options = {name: more.pop(name) for name in list(more) if not name.startswith("cairn.")}
        url, role = options.pop("url", self.server.unix), options.pop("role", "kv_both")
        log = self.server.folder / f"engine-{len(list(self.server.folder.glob('engine-*')))}.log"
        # The tests say what is found, so that is loaded even if a busy machine computes faster.
        transfer = self.transfer(url, role, {**self.SIZES, "cairn.load": "always", **more})
        engine = self.ENGINE(self.model, log, transfer, **{**self.DEFAULTS, **self.OPTIONS, **options})
        self.addCleanup(engine.close)
        return engine

    def transfer(self, url: str, role: str, options: dict[str, Any]) -> dict[str, Any]:
        """vLLM's `kv_transfer_config`."""
        return connector(url, role, **options)

    def engine(self, **more: Any) -> Engine:
        return self.begin(**more).started()

    def right(self, prompts: list[list[int]], max_tokens: int = 8, *, forget: bool = False) -> list[list[int]]:
        """The answers of an engine without a connector. forget: it first forgets its own cache."""
        own = type(self)
        if own._plain is None:
            options = {**self.DEFAULTS, **self.OPTIONS}
            own._plain = self.ENGINE(self.model, self.folder / "plain.log", None, **options).started()
        tokens: list[list[int]] = own._plain.generate(*prompts, max_tokens=max_tokens, forget=forget)["tokens"]
        return tokens

    def until_stored(self, blocks: int, tier: Tier = "pinned") -> None:
        self.server.until_stored(blocks, tier)

    def until_cached(self, engine: Engine, tokens: list[int]) -> dict[str, Any]:
        """Waits out the pause after which a silent server is asked again."""
        deadline = time.monotonic() + PATIENCE_S
        wanted = [full_blocks(len(tokens)) * BLOCK_TOKENS]
        while True:
            answer = engine.generate(tokens, forget=True)
            if answer["cached"] == wanted or time.monotonic() > deadline:
                self.assertEqual(answer["cached"], wanted, answer)
                return answer
