"""Certificates and tokens."""

import asyncio
import hashlib
import json
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from cairn import AsyncClient, CacheConfig, Client, NoAnswer, Shape, TierConfig
from cairn.engine.options import Options, Unsupported
from cairn.errors import Forbidden, Unauthorized
from fake_engine import Request
from server import PATIENCE_S, Server
from test_vllm import PROMPT, EngineCase


class SecuredCase(unittest.TestCase):
    """A server with a certificate of its own making, and a token of each role."""

    server: Server
    url: str
    certificate: str

    @classmethod
    def setUpClass(cls) -> None:
        if shutil.which("openssl") is None:
            raise unittest.SkipTest("no openssl")
        folder = tempfile.TemporaryDirectory(prefix="cairn-python-")
        cls.addClassCleanup(folder.cleanup)
        cls.certificate, key = f"{folder.name}/cert.pem", f"{folder.name}/key.pem"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
                *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
                *("-out", cls.certificate, "-keyout", key),
            ],
            check=True,
            capture_output=True,
        )
        tokens = [
            {"name": role, "role": role, "sha256": hashlib.sha256(f"{role}-token".encode()).hexdigest()}
            for role in ("read", "write", "admin")
        ]
        Path(folder.name, "tokens.json").write_text(json.dumps({"tokens": tokens}))
        cls.server = Server(
            *("--tls-cert", cls.certificate, "--tls-key", key, "--tokens", f"{folder.name}/tokens.json")
        )
        cls.addClassCleanup(cls.server.close)
        cls.url = cls.server.http.replace("http:", "https:")


class Secured(SecuredCase):
    def client(self, token: str | None, *, ca: bool = True) -> Client:
        client = Client(self.url, token, self.certificate if ca else None, timeout=PATIENCE_S)
        self.addCleanup(client.close)
        return client

    def test_a_server_is_trusted_by_its_certificate(self) -> None:
        client = self.client("admin-token")
        for _ in range(3):  # the second goes over the connection that was kept
            self.assertEqual(client.caches(), [])
        with self.assertRaises(NoAnswer):
            self.client("admin-token", ca=False).healthy()

    def test_a_server_is_trusted_by_its_certificate_also_from_asyncio(self) -> None:
        async def ask(ca: str | None) -> None:
            async with AsyncClient(self.url, "admin-token", ca, timeout=PATIENCE_S) as client:
                self.assertEqual(await client.caches(), [])
                self.assertEqual(await client.caches(), [])

        asyncio.run(ask(self.certificate))
        with self.assertRaises(NoAnswer):
            asyncio.run(ask(None))

    def test_tokens_are_asked_for(self) -> None:
        with self.assertRaises(Unauthorized):
            self.client(None).caches()
        with self.assertRaises(Unauthorized):
            self.client("wrong").caches()
        with self.assertRaises(Forbidden):
            self.client("read-token").drop_cache("c")
        self.client(None).healthy()


class Engines(SecuredCase, EngineCase):
    """What a connector does with tokens and certificates."""

    def setUp(self) -> None:
        super().setUp()
        self.client = Client(self.server.unix, "admin-token", timeout=PATIENCE_S)
        self.addCleanup(self.client.close)

    def is_found_again(self, **options: Any) -> None:
        setup = self.setup_of(**options)
        self.stored(setup)
        again = Request("again", list(PROMPT))
        self.engine(setup).run(again)
        self.assertEqual(again.loaded_tokens, 88)

    def test_an_administrators_token_over_tls(self) -> None:
        self.is_found_again(url=self.url, ca=self.certificate, token="admin-token")

    def test_an_administrators_token_over_the_socket_in_mapped_memory(self) -> None:
        # Blocks that went over HTTP would be read by this.
        with mock.patch("cairn.engine.store.HttpStore.read", side_effect=AssertionError("not in mapped memory")):
            self.is_found_again(token="admin-token")

    def test_a_writers_token_and_a_cache_that_is_there(self) -> None:
        for url in (self.url, self.server.unix):
            name = f"there-{url.partition(':')[0]}"
            self.client.make_cache(name, CacheConfig(Shape(3, 1, 4, 8, 2), {"pinned": TierConfig(64)}))
            self.is_found_again(url=url, ca=self.certificate, token="write-token", cache=name)

    def test_what_a_token_may_not_do_is_known_at_the_start(self) -> None:
        for token, why in ((None, "401"), ("wrong", "401"), ("read-token", "403"), ("write-token", "403")):
            with self.subTest(token=token), self.assertRaisesRegex(Unsupported, why):
                self.engine(self.setup_of(url=self.url, ca=self.certificate, token=token))

    def test_a_server_that_is_not_trusted_gets_no_token_and_no_block(self) -> None:
        setup = self.setup_of(url=self.url, token="admin-token")
        with self.assertLogs(self.log, "WARNING") as said:
            engine = self.engine(setup)
        self.assertIn("CERTIFICATE_VERIFY_FAILED", said.output[0])
        alone = Request("alone", list(PROMPT))
        engine.run(alone)
        self.assertEqual(alone.computed_here, 94)
        self.assertEqual(self.client.caches(), [])

    def test_the_environment_gives_what_is_not_to_be_logged(self) -> None:
        with mock.patch.dict("os.environ", {"CAIRN_TOKEN": "t", "CAIRN_CA": "/ca.pem"}):
            self.assertEqual((Options.of({}).token, Options.of({}).ca), ("t", "/ca.pem"))
            given = Options.of({"cairn.token": "other", "cairn.ca": "/other.pem"})
        self.assertEqual((given.token, given.ca), ("other", "/other.pem"))


if __name__ == "__main__":
    unittest.main()
