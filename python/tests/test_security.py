"""Certificates and tokens."""

import asyncio
import hashlib
import json
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from cairn import AsyncClient, Client, NoAnswer
from cairn.errors import Forbidden, Unauthorized
from server import PATIENCE_S, Server


class Secured(unittest.TestCase):
    """A server with a certificate of its own making, and two tokens."""

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
            for role in ("read", "admin")
        ]
        Path(folder.name, "tokens.json").write_text(json.dumps({"tokens": tokens}))
        cls.server = Server(
            *("--tls-cert", cls.certificate, "--tls-key", key, "--tokens", f"{folder.name}/tokens.json")
        )
        cls.addClassCleanup(cls.server.close)
        cls.url = cls.server.http.replace("http:", "https:")

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


if __name__ == "__main__":
    unittest.main()
