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
    """A server with a self-signed certificate and a token for each role."""

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

    def test_a_server_is_verified_by_its_certificate(self) -> None:
        client = self.client("admin-token")
        for _ in range(3):  # the later calls use the kept connection
            self.assertEqual(client.caches(), [])
        with self.assertRaises(NoAnswer):
            self.client("admin-token", ca=False).healthy()

    def test_asyncio_verifies_a_server_by_its_certificate(self) -> None:
        async def ask(ca: str | None) -> None:
            async with AsyncClient(self.url, "admin-token", ca, timeout=PATIENCE_S) as client:
                self.assertEqual(await client.caches(), [])
                self.assertEqual(await client.caches(), [])

        asyncio.run(ask(self.certificate))
        with self.assertRaises(NoAnswer):
            asyncio.run(ask(None))

    def test_a_token_is_required(self) -> None:
        with self.assertRaises(Unauthorized):
            self.client(None).caches()
        with self.assertRaises(Unauthorized):
            self.client("wrong").caches()
        with self.assertRaises(Forbidden):
            self.client("read-token").drop_cache("c")
        self.client(None).healthy()


class Engines(SecuredCase, EngineCase):
    """A connector with tokens and certificates."""

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

    def test_an_admin_token_works_over_tls(self) -> None:
        self.is_found_again(url=self.url, ca=self.certificate, token="admin-token")

    def test_an_admin_token_maps_memory_over_the_socket(self) -> None:
        # Blocks that went over HTTP would call this.
        with mock.patch("cairn.engine.store.HttpStore.read", side_effect=AssertionError("not in mapped memory")):
            self.is_found_again(token="admin-token")

    def test_a_write_token_works_with_an_existing_cache(self) -> None:
        for url in (self.url, self.server.unix):
            name = f"there-{url.partition(':')[0]}"
            self.client.make_cache(name, CacheConfig(Shape(3, 1, 4, 8, 2), {"pinned": TierConfig(64)}))
            self.is_found_again(url=url, ca=self.certificate, token="write-token", cache=name)

    def test_a_missing_permission_fails_the_start(self) -> None:
        for token, why in ((None, "401"), ("wrong", "401"), ("read-token", "403"), ("write-token", "403")):
            with self.subTest(token=token), self.assertRaisesRegex(Unsupported, why):
                self.engine(self.setup_of(url=self.url, ca=self.certificate, token=token))

    def test_an_untrusted_server_gets_no_token_and_no_block(self) -> None:
        def uses() -> list[tuple[object, ...]]:
            return [(cache.name, cache.matches, cache.commits) for cache in self.client.caches()]

        before = uses()
        setup = self.setup_of(url=self.url, token="admin-token")
        with self.assertLogs(self.log, "WARNING") as logs:
            engine = self.engine(setup)
        self.assertIn("CERTIFICATE_VERIFY_FAILED", logs.output[0])
        alone = Request("alone", list(PROMPT))
        engine.run(alone)
        self.assertEqual(alone.computed_here, 94)
        self.assertEqual(uses(), before)

    def test_token_and_ca_can_come_from_the_environment(self) -> None:
        with mock.patch.dict("os.environ", {"CAIRN_TOKEN": "t", "CAIRN_CA": "/ca.pem"}):
            self.assertEqual((Options.of({}).token, Options.of({}).ca), ("t", "/ca.pem"))
            given = Options.of({"cairn.token": "other", "cairn.ca": "/other.pem"})
        self.assertEqual((given.token, given.ca), ("other", "/other.pem"))


if __name__ == "__main__":
    unittest.main()
