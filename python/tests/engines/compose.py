"""Tests examples/vllm/compose.yaml as far as possible without containers and a GPU: vLLM accepts its flags, the
server its variables, and the user of one container can reach the server of the other. Run it with the
environment's Python."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

import yaml
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

from cairn import CacheConfig, Client, Shape, TierConfig, TierView
from cairn.engine.options import Options
from cairn.errors import NoAnswer, Unavailable
from cairn.vllm import CairnConnector
from server import PATIENCE_S, ROOT, binary

SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "vllm" / "compose.yaml").read_text())["services"]
SHAPE = Shape(2, 1, 4, 8, 2)


def serves(client: Client) -> bool:
    try:
        client.ready()
    except (NoAnswer, Unavailable):
        return False
    return True


class Compose(unittest.TestCase):
    def test_vllm_takes_its_command(self) -> None:
        # The image's entry point is `vllm serve`.
        model, *flags = SERVICES["vllm"]["command"]
        self.assertEqual(model, "${MODEL:-Qwen/Qwen3-8B}")
        given = make_arg_parser(FlexibleArgumentParser()).parse_args(["Qwen/Qwen3-8B", *flags])
        validate_parsed_serve_args(given)
        transfer = given.kv_transfer_config
        self.assertIsInstance(transfer, KVTransferConfig)
        self.assertIs(KVConnectorFactory.get_connector_class(transfer), CairnConnector)
        options = Options.of(transfer.kv_connector_extra_config)
        self.assertEqual((options.pinned_bytes, options.disk_bytes), (16 << 30, 100 << 30))
        self.assertEqual(options.url, f"unix:{SERVICES['cairn']['environment']['CAIRN_UNIX']}")
        self.assertIn("socket:/run/cairn", SERVICES["vllm"]["volumes"])

    def test_the_server_takes_its_variables_and_lets_the_engine_in(self) -> None:
        """Runs as the user of each container. Makes the socket's folder like the service `socket` does."""
        if os.geteuid() != 0:
            self.skipTest("only root runs as other users")
        with tempfile.TemporaryDirectory() as name:
            folder, data = Path(name) / "run", Path(name) / "data"
            Path(name).chmod(0o755)
            made = [str(folder) if part == "/run/cairn" else part for part in SERVICES["socket"]["entrypoint"]]
            subprocess.run(made, check=True)
            subprocess.run(["install", "-d", "-o", "7070", "-g", "7070", "-m", "0750", str(data)], check=True)
            given = {
                **SERVICES["cairn"]["environment"],
                "CAIRN_UNIX": str(folder / "socket"),
                "CAIRN_LISTEN": "127.0.0.1:0",
                "CAIRN_DATA_DIR": str(data),
            }
            self.assertEqual(set(given), {*SERVICES["cairn"]["environment"], "CAIRN_DATA_DIR"})
            rights = ["setpriv", "--reuid=7070", "--regid=7070", "--clear-groups", "--bounding-set=-all"]
            server = subprocess.Popen([*rights, "--no-new-privs", binary()], env=given, cwd=data)
            try:
                deadline = time.monotonic() + PATIENCE_S
                client = Client(f"unix:{folder}/socket", timeout=PATIENCE_S)
                while not serves(client):
                    self.assertIsNone(server.poll())
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.02)
                client.make_cache("c", CacheConfig(SHAPE, {"pinned": TierConfig(4), "disk": TierConfig(4)}))
                with TierView(client, "c").write(1) as slots:
                    slots[0].copy_from(bytes(range(128)))
                    slots.commit([b"k"])
                self.assertEqual(client.get("c", b"k"), bytes(range(128)))
                client.close()
            finally:
                server.terminate()
                self.assertEqual(server.wait(PATIENCE_S), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
