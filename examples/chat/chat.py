#!/usr/bin/env python3
"""A page with two chat windows, one for each engine: `vllm serve`, or another server with OpenAI's API. Each answer
shows how long its first token took, and how much of its prompt was not computed. What one engine has computed, the
other loads from Cairn.

usage: chat.py ENGINE_URL [ENGINE_URL] [--port N]   (with one URL both windows ask the same engine)
"""

import argparse
import http.client
import http.server
import pathlib
import urllib.parse

PAGE = pathlib.Path(__file__).resolve().with_name("page.html")
ENGINE_TIMEOUT_S = 600  # a long prompt on a CPU
MAX_BODY_BYTES = 8 << 20
PIECE_BYTES = 64 << 10


class Chat(http.server.BaseHTTPRequestHandler):
    engines: list = []  # addresses

    def do_GET(self):
        if self.path != "/":
            return self.send_error(404)
        page = PAGE.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def do_POST(self):
        """/0/... and /1/... go to the engines. Answers pass on as they come."""
        window, _, route = self.path[1:].partition("/")
        size = int(self.headers.get("Content-Length") or 0)
        if window not in ("0", "1") or not route.startswith("v1/"):
            return self.send_error(404)
        if not 0 < size <= MAX_BODY_BYTES:
            return self.send_error(413)
        engine = http.client.HTTPConnection(self.engines[int(window)], timeout=ENGINE_TIMEOUT_S)
        try:
            engine.request("POST", f"/{route}", self.rfile.read(size), {"Content-Type": "application/json"})
            answer = engine.getresponse()
        except OSError as why:
            return self.send_error(502, f"The engine does not answer: {why}")
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
        self.end_headers()
        while piece := answer.read1(PIECE_BYTES):
            self.wfile.write(piece)
        engine.close()

    def log_message(self, *_):
        pass


def address(url):
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{url} is no http:// URL")
    return parts.netloc


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("engines", metavar="ENGINE_URL", nargs="+", type=address)
    parser.add_argument("--port", type=int, default=8090)
    said = parser.parse_args()
    if len(said.engines) > 2:
        parser.error("there are two windows")
    Chat.engines = [said.engines[0], said.engines[-1]]
    with http.server.ThreadingHTTPServer(("127.0.0.1", said.port), Chat) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
