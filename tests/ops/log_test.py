#!/usr/bin/env python3
"""The log: a reader that does not read, or a caller that causes many lines, can neither stop the server nor fill a
disk. Every line can be parsed. A problem is logged when it begins and when it ends.

usage: log_test.py CAIRN_SERVER CAIRNCTL
"""

import base64
import fcntl
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading

from support import PATIENCE_S, Folder, Redis, Server, end_with_parent, eventually, free_port

TOKENS = {"boss": "admin", "reader": "read", "tenant": "admin", "sparing": "admin"}
BURST, KINDS = 100, 600  # the burst of lines of one reason; requests of one kind that a test sends


def token_of(name):
    return f"{name}-" * 4


def write_tokens(folder):
    tokens = [{"name": name, "role": role, "sha256": hashlib.sha256(token_of(name).encode()).hexdigest()}
              for name, role in TOKENS.items()]
    tokens[2]["caches"] = ["mine"]
    tokens[3]["requests_per_s"] = 1
    (folder / "tokens.json").write_text(json.dumps({"tokens": tokens}))
    return folder / "tokens.json"


def write_config(folder, **more):
    (folder / "config.json").write_text(json.dumps({"caches": [], "runtime": "host", **more}))
    return folder / "config.json"


class HeldPipe:
    """A pipe that is not read until the test calls read_all(). If `full`, it has no room for another byte."""

    def __init__(self, full=False):
        self.reader, self.writer = os.pipe()
        self.filled = 0
        if full:
            flags = fcntl.fcntl(self.writer, fcntl.F_GETFL)
            fcntl.fcntl(self.writer, fcntl.F_SETFL, flags | os.O_NONBLOCK)
            try:
                while True:
                    self.filled += os.write(self.writer, b"\n" * 4096)
            except BlockingIOError:
                pass
            fcntl.fcntl(self.writer, fcntl.F_SETFL, flags)

    def read_all(self):
        """Returns all lines, once the last writer has ended."""
        os.close(self.writer)
        with os.fdopen(self.reader, "rb") as file:
            return [line for line in file.read().decode().splitlines() if line]


class Started:
    """A server with the test's standard files, reached over its Unix socket."""

    def __init__(self, folder, *flags, prepare=None, **files):
        self.socket = folder / "cairn.sock"
        self.child = subprocess.Popen(
            [sys.argv[1], "--listen", f"127.0.0.1:{free_port()}", "--unix", self.socket, "--data-dir",
             folder / "data", *flags],
            preexec_fn=lambda: (end_with_parent(), prepare and prepare()), **{"stdout": subprocess.DEVNULL, **files})
        eventually(self.is_ready, "the server to be ready")

    def is_ready(self):
        assert self.child.poll() is None, "the server ended"
        try:
            return self.call("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def connect(self):
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE_S)
        connection.sock.connect(str(self.socket))
        return connection

    def call(self, method, path, body=None, connection=None):
        one = connection or self.connect()
        one.request(method, path, None if body is None else json.dumps(body),
                    {} if body is None else {"Content-Type": "application/json"})
        answer = one.getresponse()
        data = answer.read()
        if connection is None:
            one.close()
        return answer.status, data

    def metric(self, name):
        return int(float(re.search(rf"^{name} (\S+)", self.call("GET", "/metrics")[1].decode(), re.M).group(1)))

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(PATIENCE_S)


def clear_again_and_again(server, times):
    """Each clear writes a line of the audit log."""
    connection = server.connect()
    for _ in range(times):
        assert server.call("POST", "/v1/caches/held/clear", {}, connection)[0] == 200
    connection.close()


TIERS = {"layout": {"num_layers": 1, "outer_dim": 1, "page_size": 4, "inner_dim": 8, "dtype_width_bytes": 2},
         "tiers": {"pinned": {"num_blocks": 4}}}


def a_full_pipe_only_drops_lines():
    with Folder() as folder:
        pipe = HeldPipe()
        server = Started(folder, "--config", write_config(folder), stderr=pipe.writer)
        assert server.call("PUT", "/v1/caches/held", TIERS)[0] == 201
        clears = 3000
        clear_again_and_again(server, clears)
        assert server.call("GET", "/healthz")[0] == 200
        dropped = server.metric("cairn_log_dropped_total")
        assert dropped > 0
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(pipe.read_all()))
        reader.start()  # the reader is back
        more = 0

        def all_are_taken():
            nonlocal more, dropped
            clear_again_and_again(server, 1)
            more += 1
            before, dropped = dropped, server.metric("cairn_log_dropped_total")
            return dropped == before

        eventually(all_are_taken, "a line that is not dropped")
        assert server.stop() == 0
        reader.join()
        audits = [line for line in lines if "msg=audit" in line and "/clear" in line]
        assert len(audits) + dropped == clears + more, (len(audits), dropped, more)
        reported = re.findall('lines were dropped: nobody took them in time" dropped=([0-9]+)', "\n".join(lines))
        assert sum(map(int, reported)) == dropped, (reported, dropped)
        assert "msg=stopped" in lines[-1] or "msg=stopped" in lines[-2], lines[-3:]


def sigterm_ends_a_server_with_blocked_output():
    for held in ("stderr", "stdout", "both"):
        with Folder() as folder:
            pipe = HeldPipe(full=True)
            files = {name: pipe.writer for name in ("stdout", "stderr") if held in (name, "both")}
            if "stderr" not in files:
                files["stderr"] = subprocess.DEVNULL
            server = Started(folder, "--config", write_config(folder), **files)
            assert server.call("GET", "/healthz")[0] == 200
            assert server.stop() == 0, held


def a_blocked_terminal_stops_nothing():
    """Like Ctrl-S: the terminal accepts no output."""
    import pty
    import termios

    with Folder() as folder:
        master, terminal = pty.openpty()
        termios.tcflow(terminal, termios.TCOOFF)
        server = Started(folder, "--config", write_config(folder), stdout=terminal, stderr=terminal)
        assert server.call("PUT", "/v1/caches/held", TIERS)[0] == 201
        clear_again_and_again(server, 2000)
        assert server.stop() == 0
        os.close(master)
        os.close(terminal)


def a_refused_start_ends_if_nobody_reads():
    with Folder() as folder:
        pipe = HeldPipe(full=True)
        for expected, *flags in ((2, "--threads", "none"), (2, "--config", folder / "absent.json"),
                                 (1, "--data-dir", "/proc/nowhere")):
            child = subprocess.run([sys.argv[1], *flags], stdout=pipe.writer, stderr=pipe.writer, timeout=PATIENCE_S,
                                   preexec_fn=end_with_parent)
            assert child.returncode == expected, (flags, child.returncode)


def a_server_survives_a_closed_reader():
    with Folder() as folder:
        pipe = HeldPipe()
        server = Started(folder, "--config", write_config(folder), stderr=pipe.writer)
        os.close(pipe.reader)
        assert server.call("PUT", "/v1/caches/held", TIERS)[0] == 201
        clear_again_and_again(server, 5)
        eventually(lambda: server.metric("cairn_log_dropped_total") >= 7, "the lines to be counted")
        assert server.stop() == 0


def closed_standard_files_are_opened_first():
    for closed in ((2,), (1,), (0,), (0, 1, 2)):
        with Folder() as folder:
            server = Started(folder, "--config", write_config(folder), stdin=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, prepare=lambda: [os.close(fd) for fd in closed])
            assert server.call("PUT", "/v1/caches/held", TIERS)[0] == 201
            for fd in closed:
                assert os.readlink(f"/proc/{server.child.pid}/fd/{fd}") == "/dev/null", (closed, fd)
            clear_again_and_again(server, 20)
            assert server.stop() == 0
            assert (folder / "data" / "lock").stat().st_size == 0, closed
    # cairnctl with closed standard files must not use a connection as its output.
    with Folder() as folder:
        server = Started(folder, "--config", write_config(folder), stderr=subprocess.DEVNULL)
        done = subprocess.run([sys.argv[2], "--server", f"unix:{server.socket}", "status"], timeout=PATIENCE_S,
                              preexec_fn=lambda: [os.close(fd) for fd in range(3)])
        assert done.returncode == 0
        assert server.call("GET", "/healthz")[0] == 200
        assert server.stop() == 0


def send_many(server, request, times):
    """Sends requests on one connection without waiting for the responses."""
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw:
        done = threading.Thread(target=lambda: raw.sendall(request * times))
        done.start()
        seen = b""
        while seen.count(b"HTTP/1.1 ") < times:
            part = raw.recv(1 << 16)
            assert part, f"closed after {seen.count(b'HTTP/1.1 ')} answers"
            seen += part
        done.join()


def head(method, path, *fields, host="localhost"):
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *fields, "", ""]).encode("latin-1")


def bearer(name):
    return f"Authorization: Bearer {token_of(name)}"


def metric(server, name):
    text = server.call("GET", "/metrics", headers={"Authorization": f"Bearer {token_of('boss')}"})[1].decode()
    return int(float(re.search(rf"^{name} (\S+)", text, re.M).group(1)))


def refused_requests_cannot_flood_the_log():
    kinds = {
        "401 anonymous": head("DELETE", "/v1/caches/" + "a" * 120),
        "401 of an unknown token": head("DELETE", "/v1/caches/a", "Authorization: Bearer " + "x" * 40),
        "403 of a role": head("DELETE", "/v1/caches/a", bearer("reader")),
        "403 of a cache": head("DELETE", "/v1/caches/a", bearer("tenant")),
        "421 of a host": head("DELETE", "/v1/caches/a", host="evil.example"),
        "403 of a site": head("POST", "/v1/caches/a/clear", "Origin: http://evil.example"),
        "429 of a rate": head("DELETE", "/v1/caches/a", bearer("sparing")),
        "an absent route": head("DELETE", "/v2/nothing"),
    }
    for level in ("info", "debug"):
        with Folder() as folder:
            server = Server(sys.argv[1], folder, "--config", write_config(folder), "--tokens", write_tokens(folder),
                            "--log-level", level)
            for request in kinds.values():
                send_many(server, request, KINDS)
            wrong = b"no request at all\r\n\r\n"
            for _ in range(20):
                with socket.create_connection(server.address.split(":"), timeout=PATIENCE_S) as raw:
                    raw.sendall(wrong)
                    raw.recv(1000)
            left_out = metric(server, "cairn_log_left_out_total")
            assert left_out > 0
            assert metric(server, "cairn_log_dropped_total") == 0
            assert server.stop() == 0
            text = server.text()
            # Each line is either written or counted.
            counted = sum(int(n) for n in re.findall(r"of=audit reason=.* left_out=(\d+)", text))
            audits = len(re.findall("msg=audit", text))
            assert audits + counted == KINDS * (len(kinds) - 1), (audits, counted)
            assert re.search(r'level=info msg="\d+ more lines of this reason left out" of=audit '
                             r'reason="anonymous 401" left_out=\d+', text), text[-3000:]
            assert audits < KINDS * (len(kinds) - 1) / 2, audits
            if level == "debug":
                requests = len(re.findall("msg=request", text))
                assert requests < KINDS * len(kinds) / 2, requests


def every_action_of_a_named_caller_is_logged():
    """Even during a flood of requests from others."""
    with Folder() as folder:
        server = Server(sys.argv[1], folder, "--config", write_config(folder), "--tokens", write_tokens(folder))
        send_many(server, head("DELETE", "/v1/caches/mine"), KINDS)
        send_many(server, head("POST", "/v1/caches/mine/clear", bearer("boss"), "Content-Length: 0"), KINDS)
        assert server.stop() == 0
        assert len(re.findall("msg=audit who=token:boss", server.text())) == KINDS


def the_audit_names_the_token_that_was_refused():
    with Folder() as folder:
        server = Server(sys.argv[1], folder, "--config", write_config(folder), "--tokens", write_tokens(folder))
        basic = base64.b64encode(f"anybody:{token_of('boss')}".encode()).decode()

        def audit(name, *fields, host="localhost"):
            send_many(server, head("DELETE", f"/v1/caches/{name}", *fields, host=host), 1)
            line = eventually(lambda: re.search(rf"msg=audit .*path=/v1/caches/{name} .*", server.text()), name)
            return re.search(r"who=(\S+) .* status=(\d+)", line.group(0)).groups()

        assert audit("role", bearer("reader")) == ("token:reader", "403")
        assert audit("other", bearer("tenant")) == ("token:tenant", "403")
        assert audit("first", bearer("sparing"))[0] == "token:sparing"
        assert audit("second", bearer("sparing")) == ("token:sparing", "429")
        assert audit("host", bearer("boss"), host="evil.example") == ("token:boss", "421")
        assert audit("site", bearer("boss"), "Origin: http://evil.example") == ("token:boss", "403")
        assert audit("browser", f"Authorization: Basic {basic}") == ("token:boss", "401")
        assert audit("nobody") == ("anonymous", "401")
        secret = "y" * 40
        assert audit("unknown", f"Authorization: Bearer {secret}") == ("anonymous", "401")
        assert server.stop() == 0
        assert secret not in server.text() and token_of("reader") not in server.text()


def every_json_line_is_json():
    with Folder() as folder:
        config = write_config(folder, log_format="json")
        server = Server(sys.argv[1], folder, "--config", config, "--tokens", write_tokens(folder), "--log-level",
                        "debug")
        for path in ('/v1/caches/"\\', "/v1/caches/%0a%00%ff", "/v1/caches/a=b", "/v1/caches/" + "%e2%82%ac" * 40):
            send_many(server, head("DELETE", path, bearer("boss")), 1)
        send_many(server, head("DELETE", "/v1/caches/a"), KINDS)
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.log.read_bytes().splitlines() if not line.startswith(b"cairn-")]
        assert all({"time", "level", "msg"} <= set(line) for line in lines)
        audits = [line for line in lines if line["msg"] == "audit"]
        assert audits[0]["path"] == '/v1/caches/"\\' and audits[0]["who"] == "token:boss", audits[0]
        assert isinstance(audits[0]["status"], int)
        left_out = [line for line in lines if "more lines of this reason left out" in line["msg"]]
        assert sum(line["left_out"] for line in left_out if line["of"] == "audit") + len(audits) == KINDS + 4


def problems_are_logged_when_they_begin_and_end():
    if not shutil.which("redis-server"):
        print("no redis-server: the warnings of a shared store are not tested")
        return
    with Folder() as folder:
        redis = Redis(folder)
        config = write_config(folder, shared={"url": f"redis://{redis.address}", "timeout_ms": 200})
        server = Server(sys.argv[1], folder, "--config", config)

        def warnings():
            return server.call("GET", "/v1/system")[1]["warnings"]

        def lines(text):
            return [line for line in server.text().splitlines() if text in line]

        def status():
            return subprocess.run([sys.argv[2], "--server", f"http://{server.address}", "status"], timeout=PATIENCE_S,
                                  capture_output=True, text=True).stdout

        eventually(lambda: server.call("GET", "/v1/system")[1]["shared"]["ready"], "the store")
        assert warnings() == [] and "warning:" not in status()
        redis.stop(signal.SIGKILL)
        eventually(lambda: [one for one in warnings() if one["kind"] == "shared_node"], "the warning")
        assert redis.address in status() and "warning: shared_node" in status()
        eventually(lambda: lines("a node of the shared store does not answer"), "the line")
        # The server keeps trying in the meantime.
        failed = lambda: server.call("GET", "/v1/system")[1]["uptime_ms"]
        begun = failed()
        eventually(lambda: failed() > begun + 1500, "some tries")
        assert len(lines("a node of the shared store does not answer")) == 1
        again = subprocess.Popen(["redis-server", "--port", redis.address.split(":")[1], "--bind", "127.0.0.1",
                                  "--save", "", "--dir", folder], stdout=subprocess.DEVNULL,
                                 preexec_fn=end_with_parent)
        eventually(lambda: lines("a node of the shared store answers again"), "the end of the warning")
        eventually(lambda: warnings() == [], "no warning")
        assert len(lines("a node of the shared store answers again")) == 1
        again.kill()
        again.wait()
        assert server.stop() == 0


def a_cache_that_cannot_be_made_is_reported():
    with Folder() as folder:
        shared = {"url": f"redis://127.0.0.1:{free_port()}"}
        server = Server(sys.argv[1], folder, "--config", write_config(folder, shared=shared))
        body = {**TIERS, "tiers": {**TIERS["tiers"], "disk": {"num_blocks": 4}}, "shared": {}}
        assert server.call("PUT", "/v1/caches/beyond", body)[0] == 201
        assert server.stop() == 0
        server = Server(sys.argv[1], folder, "--config", write_config(folder))
        eventually(lambda: [one for one in server.call("GET", "/v1/system")[1]["warnings"]
                            if one["kind"] == "cache" and one["subject"] == "beyond"], "the warning")
        status = subprocess.run([sys.argv[2], "--server", f"http://{server.address}", "status"], timeout=PATIENCE_S,
                                capture_output=True, text=True, check=True).stdout
        assert "warning: cache beyond: " in status, status
        assert "could not be made" in server.text() and "cache=beyond" in server.text()
        assert server.stop() == 0


def main():
    a_full_pipe_only_drops_lines()
    sigterm_ends_a_server_with_blocked_output()
    a_blocked_terminal_stops_nothing()
    a_refused_start_ends_if_nobody_reads()
    a_server_survives_a_closed_reader()
    closed_standard_files_are_opened_first()
    refused_requests_cannot_flood_the_log()
    every_action_of_a_named_caller_is_logged()
    the_audit_names_the_token_that_was_refused()
    every_json_line_is_json()
    problems_are_logged_when_they_begin_and_end()
    a_cache_that_cannot_be_made_is_reported()


if __name__ == "__main__":
    main()
