"""Where tokens and passwords are read, and that no output repeats them."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import logging
import os
import pickle
import re
import socket
import subprocess
import sys
import threading
import traceback
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from cairn import AsyncClient, Client, NoAnswer, Refused
from cairn.address import parse_address
from cairn.engine.options import Options, Unsupported
from cairn.engine.report import Report
from cairn.errors import CairnError, NoCapacity, TimedOut, WrongArgument, refusal
from server import PATIENCE_S, ROOT
from test_security import SecuredCase

SECRET = "sesame-open-sesame"
# Between two halves of it, each is no token. The last is what a folded header would be made of.
WITHIN = (" ", "\n", "\r\n", "\t", "\x00", "\x7f", "é", "\r\nX-Role: admin\r\nX: ")


def halves(between: str) -> str:
    return SECRET[:6] + between + SECRET[6:]


def ask(client: AsyncClient) -> None:
    async def system() -> None:
        await client.system()

    asyncio.run(system())


class Door:
    """A server that answers each request of one connection with the same bytes, or closes it."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._listens = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listens.getsockname()[1]}"
        self.seen = b""
        self._answer = answer
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        peer, _ = self._listens.accept()
        with peer:
            peer.settimeout(PATIENCE_S)
            while b"\r\n\r\n" not in self.seen:
                self.seen += peer.recv(65536)
            peer.sendall(self._answer(self.seen))

    def close(self) -> None:
        self._thread.join(PATIENCE_S)
        self._listens.close()


class Tokens(unittest.TestCase):
    def door(self, answer: Callable[[bytes], bytes]) -> Door:
        door = Door(answer)
        self.addCleanup(door.close)
        return door

    def test_white_space_around_a_token_is_removed(self) -> None:
        for given in (SECRET, f"{SECRET}\n", f"{SECRET}\r\n", f" \t{SECRET} "):
            door = self.door(lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            Client(door.url, given).healthy()
            self.assertIn(b"Authorization: Bearer " + SECRET.encode() + b"\r\n", door.seen)

    def test_an_invalid_token_is_refused_by_its_source_without_its_text(self) -> None:
        for within in WITHIN:
            wrong = halves(within)
            sources: dict[str, Callable[[], object]] = {
                "token": functools.partial(Client, "http://h", wrong),
                "token ": functools.partial(AsyncClient, "http://h", token=wrong),
                "cairn.token": functools.partial(Options.of, {"cairn.token": wrong}),
                "CAIRN_TOKEN": functools.partial(Options.of, {}),
            }
            variable = wrong.replace("\x00", "\n")
            for source, read in sources.items():
                with (
                    self.subTest(source, within=within),
                    mock.patch.dict("os.environ", {"CAIRN_TOKEN": variable}),
                    self.assertRaises(WrongArgument) as raised,
                ):
                    read()
                self.assertRegex(str(raised.exception), f"^{re.escape(source.strip())} has")
                self.assertNotRegex("".join(traceback.format_exception(raised.exception)), "open|sesame")

    def test_a_token_that_is_not_text_is_refused(self) -> None:
        for wrong, why in ((12345, "type int"), (b"abc", "type bytes"), (["a"], "type list"), (" \n", "no token")):
            with self.assertRaisesRegex(WrongArgument, f"^cairn.token .*{why}"):
                Options.of({"cairn.token": wrong})
            with self.assertRaisesRegex(WrongArgument, f"^token .*{why}"):
                Client("http://h", wrong)  # type: ignore[arg-type]
        for nothing in (None, ""):
            self.assertIsNone(Options.of({"cairn.token": nothing}).token)

    def test_the_tool_reads_a_token_from_flag_and_environment(self) -> None:
        for words, variable, source in (
            (["--token", halves(" ")], "", "--token"),
            ([], halves("\n"), "CAIRN_TOKEN"),
        ):
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "python" / "src"), "CAIRN_TOKEN": variable}
            done = subprocess.run(
                [sys.executable, "-B", "-m", "cairn", "--server", "unix:/nowhere", *words, "status"],
                capture_output=True,
                text=True,
                env=environment,
            )
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(f"{source} has white space", done.stderr)
            self.assertNotRegex(done.stderr, "open|sesame")


class Served(SecuredCase):
    def test_a_token_with_a_newline_at_its_end_is_accepted(self) -> None:
        with mock.patch.dict("os.environ", {"CAIRN_TOKEN": "admin-token\n"}):
            options = Options.of({"cairn.url": self.url, "cairn.ca": self.certificate})
        with options.client(PATIENCE_S) as client:
            self.assertEqual(client.caches(), [])


class Silence(unittest.TestCase):
    """Text that a program may log never contains a secret."""

    def test_reprs_do_not_show_the_token(self) -> None:
        options = Options.of({"cairn.token": SECRET})
        client, later = Client("http://h", SECRET), AsyncClient("http://h", SECRET)
        shown: list[object] = [
            options,
            dataclasses.replace(options, cache="c"),
            dataclasses.asdict(options),
            vars(options),
        ]
        shown += [client, later, *map(vars, (client, later, client.apart(), copy.copy(client)))]
        for one in shown:
            self.assertNotIn(SECRET, repr(one))
            self.assertNotIn(SECRET, f"{one}")
        self.assertEqual(options.token, SECRET)

    def failure_of(self, act: Callable[[], Any], *, with_locals: bool) -> str:
        with self.assertLogs("cairn.test") as logs:
            try:
                act()
            except CairnError as error:
                Report(logging.getLogger("cairn.test")).failed("it failed")
                texts = list(logs.output)
                one: BaseException | None = error
                while one is not None:
                    # Includes the package's local variables, which error reporters send.
                    whole = traceback.TracebackException.from_exception(one, capture_locals=with_locals)
                    texts += [repr(one), str(one)]
                    texts += [str(frame.locals) for frame in whole.stack if "/cairn/" in frame.filename]
                    one = one.__cause__ or one.__context__
                return "".join(texts)
        raise AssertionError("nothing failed")

    def test_a_client_that_cannot_be_made_does_not_show_the_token(self) -> None:
        for kind in (Client, AsyncClient):
            try:
                kind("https://h", SECRET, "/nowhere/ca.pem")
            except FileNotFoundError as error:
                whole = traceback.TracebackException.from_exception(error, capture_locals=True)
            shown = [str(frame.locals) for frame in whole.stack if "/cairn/" in frame.filename]
            self.assertTrue(shown)
            self.assertNotIn(SECRET, "".join(shown))

    def test_tracebacks_do_not_show_the_token(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            silent = f"http://127.0.0.1:{mute.getsockname()[1]}"
            for act in (
                Client("unix:/nowhere", SECRET).system,
                Client(silent, SECRET, timeout=0.05).system,
                lambda: Client(silent, SECRET, timeout=0.05).put("c", "aa", bytes(1 << 20)),
                functools.partial(ask, AsyncClient("unix:/nowhere", SECRET)),
                functools.partial(ask, AsyncClient(silent, SECRET, timeout=0.05)),
            ):
                self.assertNotIn(SECRET, self.failure_of(act, with_locals=True))

    def test_an_answer_that_repeats_the_request_does_not_show_the_token(self) -> None:
        def page(head: bytes) -> bytes:
            return b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(head) + head

        def problem(head: bytes) -> bytes:
            body = b'{"code": "malformed", "detail": "head: %s"}' % head.replace(b"\r\n", b" ")
            return b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(body) + body

        for answer in (page, problem, lambda head: head, lambda head: b"HTTP/1.1 200 OK\r\n" + head):
            door = Door(answer)
            client = Client(door.url, SECRET, timeout=PATIENCE_S)
            self.assertNotIn(SECRET, self.failure_of(client.system, with_locals=False))
            door.close()
            door = Door(answer)
            later = AsyncClient(door.url, SECRET, timeout=PATIENCE_S)
            self.assertNotIn(SECRET, self.failure_of(functools.partial(ask, later), with_locals=False))
            door.close()

    def test_errors_about_urls_do_not_show_a_password(self) -> None:
        for url in (
            f"http://me:{SECRET}@h:7070",
            f"https://{SECRET}@h",
            f"http://:{SECRET}@h:1",
            f"http://me:{SECRET}/x@h:1",
            f"http://me:{SECRET}?x@h:1",
            f"http://me:{SECRET}#x@h:1",
            f"HTTP://me:{SECRET}@h:1",
            f"me:{SECRET}@h:7070",
            f"http://h:1?token={SECRET}",
            f"http://h:1/#{SECRET}",
            f"ftp://me:{SECRET}@h",
            f"http://me:{SECRET}@[h",
            f"http://me:{SECRET}@h:port",
        ):
            with self.subTest(url), self.assertRaises(ValueError) as raised:
                parse_address(url)
            self.assertNotRegex("".join(traceback.format_exception(raised.exception)), f"{SECRET}|me:")
            with self.assertRaisesRegex(Unsupported, "^cairn.url: ") as refused:
                Options.of({"cairn.url": url})
            self.assertNotIn(SECRET, "".join(traceback.format_exception(refused.exception)))

    def test_host_names_beyond_ascii_are_encoded(self) -> None:
        self.assertEqual(parse_address("http://bücher.example:1").host, "xn--bcher-kva.example:1")
        with self.assertRaises(ValueError):
            parse_address(f"http://{'x' * 64}.example")


class Copies(unittest.TestCase):
    """Errors are passed between processes."""

    def test_an_error_survives_pickle_and_copy(self) -> None:
        full = refusal(507, b'{"code": "no_capacity", "detail": "no slot is free"}', "3")
        for error in (
            full,
            refusal(418, b'{"code": "new_word", "detail": "d"}', None),
            refusal(502, b"<html>", None),
            NoAnswer("nobody listens"),
            TimedOut("too late"),
            WrongArgument("a key is bytes"),
        ):
            for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
                self.assertIs(type(again), type(error))
                self.assertEqual((str(again), repr(again), vars(again)), (str(error), repr(error), vars(error)))
        again = pickle.loads(pickle.dumps(full))
        assert isinstance(again, Refused)
        self.assertIsInstance(again, NoCapacity)
        self.assertEqual((again.status, again.code, again.detail), (507, "no_capacity", "no slot is free"))
        self.assertEqual((again.retry_after_s, str(again)), (3.0, "507 no_capacity: no slot is free"))

    def test_every_refusal_survives_pickle_and_copy(self) -> None:
        kinds: list[type[Refused]] = [Refused, *Refused.__subclasses__()]
        for kind in kinds:
            error = kind(409, kind.code, "why", 1.5)
            self.assertEqual(vars(pickle.loads(pickle.dumps(error))), vars(error))


if __name__ == "__main__":
    unittest.main()
