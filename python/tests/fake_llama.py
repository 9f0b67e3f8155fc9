"""A llama-server for tests: its HTTP, its slots and its state files, with arithmetic instead of a model."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

LAYERS, ROW_BYTES = 2, 8  # ROW_BYTES: of one token in one layer, unless a test sets another size
MAGIC = 0x67677371
# Characters become tokens that no probe has.
FIRST_CHARACTER = 100


class FakeLlama:
    """Answers are a hash over the cells of the slot, so a wrong state gives another text. Tests set the public
    fields."""

    def __init__(self, folder: Path, slots: int = 2, port: int = 0) -> None:
        self.folder = folder
        self.version = 4
        self.transposed = False
        self.is_recurrent = False
        self.weights = "a"
        self.started = "1"
        self.key: str | None = None
        self.slots: list[list[tuple[int, bytes]]] = [[] for _ in range(slots)]
        self.checkpoints: list[list[int]] = [[] for _ in range(slots)]  # of a recurrent model
        self.may_save = threading.Event()
        self.may_go_on = threading.Event()  # with an answer, after a part of it
        self.may_save.set()
        self.may_go_on.set()
        self.step_s = 0.0  # between two parts of an answer
        self.cut_saves = False  # a save writes half of its file
        self.break_saves = False  # a save writes a wrong number of layers
        self.computed: list[int] = []  # tokens that each request computed
        self.used: list[int] = []  # the slot of each request
        self.seen: list[tuple[str, str, bytes]] = []
        self.restored: list[int] = []
        self.ended_early = threading.Event()
        self._lock = threading.Lock()
        self._locks = [threading.Lock() for _ in range(slots)]
        self.running = self.most_running = 0
        llama = self

        class Handler(_Handler):
            server_of = llama

        self.row_bytes = ROW_BYTES
        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def restart(self, weights: str | None = None) -> None:
        """As if the process were started again: the slots are empty."""
        self.started += "1"
        self.weights = weights or self.weights
        for slot in self.slots:
            slot.clear()

    def compute(self, slot: int, tokens: list[int], *, reuse: bool) -> None:
        held = self.slots[slot]
        same = 0
        while reuse and same < min(len(held), len(tokens) - 1) and held[same][0] == tokens[same]:
            same += 1
        if self.is_recurrent and same < len(held):  # a recurrent state only goes back to a checkpoint
            same = max((at for at in self.checkpoints[slot] if at <= same), default=0)
        del held[same:]
        self.checkpoints[slot] = [at for at in self.checkpoints[slot] if at <= same]
        if len(tokens) - same > 4:
            self.checkpoints[slot].append(len(tokens) - 4)
        for at in range(same, len(tokens)):
            before = held[-1][1] if held else b""
            cell = hashlib.sha512(f"{self.weights} {at} {tokens[at]}".encode() + before).digest()
            held.append((tokens[at], _stretched(cell, 2 * LAYERS * self.row_bytes)))
        self.computed.append(len(tokens) - same)

    def answer(self, slot: int, count: int) -> list[str]:
        parts = []
        for _ in range(count):
            word = hashlib.sha256(b"".join(cell for _, cell in self.slots[slot])).hexdigest()[:6]
            parts.append(word + " ")
            tokens = [token for token, _ in self.slots[slot]] + [FIRST_CHARACTER + ord(word[0])]
            self.compute(slot, tokens, reuse=True)
            self.computed.pop()
        return parts

    def save(self, slot: int) -> bytes:
        cells = self.slots[slot]
        named = [-1, 1, len(cells), *[token for token, _ in cells], 0]
        data = struct.pack("<III", MAGIC, self.version, len(named)) + struct.pack(f"<{len(named)}i", *named)
        if self.is_recurrent:  # one cell with a state
            state = hashlib.sha512(b"".join(cell for _, cell in cells)).digest()
            data += struct.pack("<IIIi", 1, 77, len(cells), 5) + state + b"".join(cell for _, cell in cells)
            data += b"SCKP" + struct.pack("<II", 1, len(self.checkpoints[slot]))
            return data + b"".join(
                struct.pack("<qiiQ3sQQ", at, at, at, 3, b"abc", 0, 0) for at in self.checkpoints[slot]
            )
        data += struct.pack("<I", len(self.slots))
        for stream in range(len(self.slots)):
            count = len(cells) if stream == slot else 0
            data += struct.pack("<I", count)
            if not count:
                continue
            data += b"".join(struct.pack("<iIi", at, 1, slot) for at in range(count))
            data += struct.pack("<II", self.transposed, LAYERS) + (bytes(8) if self.version >= 4 else b"")
            for part in range(2 * LAYERS):
                rows = [cell[part * self.row_bytes : (part + 1) * self.row_bytes] for _, cell in cells]
                if part >= LAYERS and self.transposed:
                    data += struct.pack("<iII", 1, 2, self.row_bytes // 2)
                    data += b"".join(row[at : at + 2] for at in range(0, self.row_bytes, 2) for row in rows)
                else:
                    data += struct.pack("<iQ", 1, self.row_bytes) + b"".join(rows)
        return data

    def restore(self, slot: int, data: bytes) -> int:
        """Raises ValueError for a state of another form."""
        _, version, words = struct.unpack_from("<III", data)
        named = struct.unpack_from(f"<{words}i", data, 12)
        tokens = named[3:-1]
        at = 12 + 4 * words
        if version != self.version:
            raise ValueError("another version")
        if self.is_recurrent:
            rest = data[at + 16 + 64 :]
            tail = rest[len(tokens) * 2 * LAYERS * self.row_bytes :]
            self.checkpoints[slot] = [
                struct.unpack_from("<q", tail, 12 + 43 * n)[0] for n in range(struct.unpack_from("<I", tail, 8)[0])
            ]
            size = 2 * LAYERS * self.row_bytes
            self.slots[slot][:] = [(token, rest[n * size : (n + 1) * size]) for n, token in enumerate(tokens)]
            return len(tokens)
        streams, count = struct.unpack_from("<II", data, at)
        at += 8 + 12 * count
        transposed, layers = struct.unpack_from("<II", data, at)
        at += 16 if version >= 4 else 8
        if streams != len(self.slots) or transposed != self.transposed or layers != LAYERS or count != len(tokens):
            raise ValueError("another form")
        cells = [b""] * count
        for part in range(2 * LAYERS):
            at += 12
            for n in range(count):
                if part >= LAYERS and self.transposed:
                    elements = range(self.row_bytes // 2)
                    cells[n] += b"".join(data[at + 2 * (e * count + n) :][:2] for e in elements)
                else:
                    cells[n] += data[at + n * self.row_bytes :][: self.row_bytes]
            at += count * self.row_bytes
        if at + 4 * (streams - 1) != len(data):
            raise ValueError("another size")
        self.slots[slot][:] = list(zip(tokens, cells, strict=True))
        return len(cells)

    def pick(self, wanted: int) -> int:
        with self._lock:
            return wanted if wanted >= 0 else min(range(len(self.slots)), key=lambda n: len(self.slots[n]))


class _Handler(BaseHTTPRequestHandler):
    server_of: FakeLlama
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        llama = self.server_of
        llama.seen.append(("GET", self.path, b""))
        if self.path == "/props":
            count = len(llama.slots)
            settings = {"n_ctx": 4096, "params": {"lora": []}}
            self._json(
                {
                    "default_generation_settings": settings,
                    "total_slots": count,
                    "model_path": "/same/name.gguf",
                    "model_alias": "name",
                    "build_info": "b1",
                    "media_marker": llama.started,
                }
            )
        elif self.path == "/v1/models":
            self._json({"data": [{"id": "name", "meta": {"n_params": 1}}]})
        elif self.path == "/lora-adapters":
            self._json([])
        elif self.path == "/odd?a=b":
            self._raw(418, b"I am \x00\xff odd", [("X-Odd", "1; q"), ("X-Odd", "2")])
        else:
            self._json({"error": {"code": 404, "message": "File Not Found"}}, 404)

    def do_POST(self) -> None:
        llama = self.server_of
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        llama.seen.append(("POST", self.path, raw))
        if llama.key is not None and self.headers.get("Authorization") != f"Bearer {llama.key}":
            self._json({"error": {"code": 401, "message": "Invalid API Key"}}, 401)
            return
        path = urlsplit(self.path)
        if path.path == "/echo":
            self._raw(200, raw, [])
            return
        body = json.loads(raw) if raw else {}
        if path.path == "/tokenize":
            self._json({"tokens": _tokens(body["content"])})
        elif path.path == "/apply-template":
            self._json({"prompt": _template(body)})
        elif path.path.startswith("/slots/"):
            self._slot(int(path.path.split("/")[2]), parse_qs(path.query)["action"][0], body)
        elif path.path in ("/completion", "/v1/completions", "/v1/chat/completions"):
            self._complete(path.path, body)
        else:
            self._json({"error": {"code": 404, "message": "File Not Found"}}, 404)

    def _slot(self, slot: int, action: str, body: dict[str, Any]) -> None:
        llama = self.server_of
        with llama._locks[slot]:
            if action == "erase":
                llama.slots[slot].clear()
                self._json({"id_slot": slot, "n_erased": 0})
                return
            path = llama.folder / body["filename"]
            if action == "save":
                llama.may_save.wait()
                data = llama.save(slot)
                wrong = _broken(data) if llama.break_saves else data
                path.write_bytes(wrong[: len(data) // 2] if llama.cut_saves else wrong)
                self._json({"id_slot": slot, "n_saved": len(llama.slots[slot]), "n_written": len(data)})
                return
            try:
                count = llama.restore(slot, path.read_bytes())
            except (OSError, ValueError, struct.error) as error:
                self._json({"error": {"code": 400, "message": f"Unable to restore slot: {error}"}}, 400)
                return
            llama.restored.append(count)
            self._json({"id_slot": slot, "n_restored": count})

    def _complete(self, path: str, body: dict[str, Any]) -> None:
        llama = self.server_of
        slot = llama.pick(body.get("id_slot", -1))
        if path == "/v1/chat/completions":
            tokens = _tokens(_template(body))
        else:
            tokens = body["prompt"] if isinstance(body["prompt"], list) else _tokens(body["prompt"])
        with llama._locks[slot]:
            with llama._lock:
                llama.running += 1
                llama.most_running = max(llama.running, llama.most_running)
            try:
                is_probe = body.get("n_predict") == 0
                llama.compute(slot, tokens, reuse=body.get("cache_prompt", True))
                if is_probe:
                    llama.computed.pop()
                else:
                    llama.used.append(slot)
                parts = [] if is_probe else llama.answer(slot, body.get("max_tokens", 3))
                if not body.get("stream"):
                    time.sleep(llama.step_s)
                    self._json({"content": "".join(parts)})
                    return
                self._stream(parts)
            finally:
                with llama._lock:
                    llama.running -= 1

    def _stream(self, parts: list[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for part in [*parts, "[DONE]"]:
                event = b"data: " + json.dumps({"content": part}).encode() + b"\n\n"
                self.wfile.write(b"%x\r\n" % len(event) + event + b"\r\n")
                self.wfile.flush()
                self.server_of.may_go_on.wait()
                time.sleep(self.server_of.step_s)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
            self.server_of.ended_early.set()

    def _json(self, value: object, status: int = 200) -> None:
        self._raw(status, json.dumps(value).encode(), [("Content-Type", "application/json")])

    def _raw(self, status: int, data: bytes, headers: list[tuple[str, str]]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        with contextlib.suppress(ConnectionError):  # the proxy may have gone
            self.end_headers()
            self.wfile.write(data)


def _stretched(data: bytes, size: int) -> bytes:
    return (data * (size // len(data) + 1))[:size]


def _broken(data: bytes) -> bytes:
    """The same length, but the number of layers is wrong."""
    wrong = bytearray(data)
    words = struct.unpack_from("<I", data, 8)[0]
    at = 12 + 4 * words + 4
    while not struct.unpack_from("<I", data, at)[0]:
        at += 4
    at += 4 + 12 * struct.unpack_from("<I", data, at)[0] + 4
    struct.pack_into("<I", wrong, at, 3)
    return bytes(wrong)


def _tokens(text: str) -> list[int]:
    return [FIRST_CHARACTER + ord(character) for character in text]


def _template(body: dict[str, Any]) -> str:
    return "".join(f"<{one['role']}>{one['content']}" for one in body["messages"]) + "<assistant>"
