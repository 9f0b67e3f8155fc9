"""A whole `vllm serve` on the CPU, for tests whose clients know nothing but its URL."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from typing import Any

from rig import ANSWER_S, BLOCK_TOKENS, HERE, EngineCase, connector, python

from server import PATIENCE_S


class ServedCase(EngineCase):
    """Starts one for each test."""

    # For the engine's process.
    FLAGS: tuple[str, ...] = ()
    ENVIRONMENT: dict[str, str] = {}  # noqa: RUF012
    CONNECTOR: dict[str, Any] = {}  # noqa: RUF012

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        subprocess.run([python(), str(HERE / "tiny_tokenizer.py"), str(cls.model)], check=True)

    def serve(self, url: str) -> None:
        """url: of the Cairn that its connector uses."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = self.server.folder / "serve.log"
        with open(self.log, "wb") as out:
            self.serving = subprocess.Popen(
                [
                    # As `vllm serve`, which needs the metadata of a distribution with the name vllm.
                    *(python(), "-B", "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)),
                    *("--served-model-name", "MODEL", "--host", "127.0.0.1"),
                    *("--port", str(self.port), "--dtype", "float32", "--block-size", str(BLOCK_TOKENS)),
                    *("--max-model-len", "4096", "--enforce-eager", "--seed", "0"),
                    *("--kv-transfer-config", json.dumps(connector(url, **self.CONNECTOR)), *self.FLAGS),
                ],
                stdout=out,
                stderr=out,
                env={
                    **os.environ,
                    "PYTHONPATH": str(HERE.parents[1] / "src"),
                    "VLLM_CPU_KVCACHE_SPACE": "1",
                    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                    "HF_HUB_OFFLINE": "1",
                    "VLLM_NO_USAGE_STATS": "1",
                    **self.ENVIRONMENT,
                },
                start_new_session=True,
            )
        self.addCleanup(self.end)
        deadline = time.monotonic() + ANSWER_S
        while not self.is_ready():
            ended = self.serving.poll() is not None
            self.assertFalse(ended or time.monotonic() > deadline, self.log.read_text()[-6000:])
            time.sleep(0.5)

    def end(self) -> None:
        if self.serving.poll() is None:
            os.killpg(self.serving.pid, signal.SIGKILL)
            self.serving.wait()

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=PATIENCE_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def post(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **(headers or {})},
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            data = answer.read()
            return json.loads(data) if data else None

    def complete(self, tokens: list[int], headers: dict[str, str] | None = None, **params: Any) -> Any:
        return self.post(
            "/v1/completions",
            headers,
            model="MODEL",
            prompt=tokens,
            max_tokens=8,
            ignore_eos=True,
            **({"kv_transfer_params": params} if params else {}),
        )
