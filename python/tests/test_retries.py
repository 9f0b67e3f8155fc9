"""Calls that a busy server refused, and that a client sends again."""

import asyncio
import http.server
import threading
import unittest

from cairn import AsyncClient, Client, Refused
from cairn.errors import WrongArgument


class Busy(http.server.BaseHTTPRequestHandler):
    """Refuses as many calls as its server's `refusals`, then answers."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        made: Server = self.server  # type: ignore[assignment]
        made.calls += 1
        status, body = 200, b"a 1\n"
        if made.calls <= made.refusals:
            status, body = 503, b'{"code": "unavailable", "detail": "busy"}'
        self.send_response(status)
        if status == 503 and made.pause_s is not None:
            self.send_header("Retry-After", str(made.pause_s))
        self.send_header("Content-Type", "application/problem+json" if status == 503 else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    def __init__(self, refusals: int, pause_s: int | None) -> None:
        super().__init__(("127.0.0.1", 0), Busy)
        self.refusals, self.pause_s, self.calls = refusals, pause_s, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Retries(unittest.TestCase):
    def serve(self, refusals: int, pause_s: int | None = 0) -> Server:
        server = Server(refusals, pause_s)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        return server

    def ask(self, server: Server, retries: int, timeout: float = 30.0) -> str:
        with Client(server.url, timeout=timeout, retries=retries) as client:
            return client.metrics()

    def ask_async(self, server: Server, retries: int, timeout: float = 30.0) -> str:
        async def ask() -> str:
            async with AsyncClient(server.url, timeout=timeout, retries=retries) as client:
                return await client.metrics()

        return asyncio.run(ask())

    def test_a_busy_server_is_asked_again(self) -> None:
        for ask in (self.ask, self.ask_async):
            server = self.serve(refusals=2)
            self.assertEqual(ask(server, retries=2), "a 1\n")
            self.assertEqual(server.calls, 3)

    def test_a_call_is_given_up_after_its_retries(self) -> None:
        for ask in (self.ask, self.ask_async):
            for retries in (0, 2):
                server = self.serve(refusals=9)
                with self.assertRaises(Refused) as refused:
                    ask(server, retries=retries)
                self.assertEqual((refused.exception.retry_after_s, server.calls), (0, 1 + retries))

    def test_a_call_is_not_sent_again_without_a_time_or_after_its_own(self) -> None:
        for ask in (self.ask, self.ask_async):
            for pause_s in (None, 60):
                server = self.serve(refusals=9, pause_s=pause_s)
                with self.assertRaises(Refused):
                    ask(server, retries=5, timeout=20.0)
                self.assertEqual(server.calls, 1)

    def test_the_number_is_checked(self) -> None:
        for kind in (Client, AsyncClient):
            with self.assertRaisesRegex(WrongArgument, "retries is -1"):
                kind("http://127.0.0.1:1", retries=-1)

    def test_a_client_shows_its_url_and_not_its_token(self) -> None:
        self.assertEqual(repr(Client("http://127.0.0.1:1", token="secret")), "Client('http://127.0.0.1:1')")


if __name__ == "__main__":
    unittest.main()
