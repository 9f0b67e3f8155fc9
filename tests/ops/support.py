"""Starts and ends programs for tests, and makes small HTTP requests. Uses only the standard library."""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77  # the exit code that CTest counts as a skipped test
# Longer than any operation takes on a loaded machine under a sanitizer.
PATIENCE_S = 90


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def find_tool(name):
    """A program of this machine, or one that `./run test` unpacked; None if there is neither."""
    unpacked = ROOT / "build" / "tools" / "usr" / "bin" / name
    return shutil.which(name) or (str(unpacked) if unpacked.exists() else None)


def eventually(condition, what):
    """Calls `condition` repeatedly and returns the first true answer."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE_S} s for {what}")
        time.sleep(0.05)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end_with_parent():
    """In a child between fork and exec: makes the kernel kill it when its test ends."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Process:
    def __init__(self, command, log, env=None):
        self.log = pathlib.Path(log)
        with open(self.log, "wb") as out:
            self.child = subprocess.Popen([str(word) for word in command], stdout=out, stderr=out, env=env,
                                          preexec_fn=end_with_parent)

    def text(self):
        return self.log.read_text(errors="replace")

    def stop(self, how=signal.SIGTERM):
        if self.child.poll() is None:
            self.child.send_signal(how)
        return self.child.wait(PATIENCE_S)


class Server(Process):
    """A cairn-server on a free port with its own data folder."""

    def __init__(self, program, folder, *flags, env=None, address="127.0.0.1:0"):
        self.folder = pathlib.Path(folder)
        command = [program, "--listen", address, "--data-dir", self.folder / "data", *flags]
        super().__init__(command, self.folder / "server.log", env=env)
        found = eventually(self._listening, "the server to listen")
        self.address = found.group(1)

    def _listening(self):
        if self.child.poll() is not None:
            raise AssertionError(f"the server did not start:\n{self.text()}")
        return re.search(r"listening on http://(127\.0\.0\.1:\d+)", self.text())

    def call(self, method, path, body=None, headers=None, timeout_s=PATIENCE_S):
        """Sends one request and returns (status, body). A dict is sent as JSON; a JSON answer is returned as a
        dict."""
        headers = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        elif body is not None:
            headers.setdefault("Content-Type", "application/octet-stream")
        connection = http.client.HTTPConnection(self.address, timeout=timeout_s)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
            if "json" in (answer.getheader("Content-Type") or ""):
                data = json.loads(data)
            return answer.status, data
        finally:
            connection.close()


class Redis(Process):
    """A redis-server on a free port of 127.0.0.1, without persistence."""

    def __init__(self, folder):
        self.address = f"127.0.0.1:{free_port()}"
        super().__init__(["redis-server", "--port", self.address.split(":")[1], "--bind", "127.0.0.1", "--save", "",
                          "--dir", folder], pathlib.Path(folder) / "redis.log")
        eventually(lambda: "Ready to accept connections" in self.text(), "the Redis to listen")


class Prometheus(Process):
    """A Prometheus that scrapes one address several times a second."""

    def __init__(self, program, folder, target, rules=None):
        folder = pathlib.Path(folder)
        config = {
            "global": {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"},
            "scrape_configs": [{"job_name": "cairn", "static_configs": [{"targets": [target]}]}],
            "rule_files": [str(rules)] if rules else [],
        }
        # JSON is valid YAML.
        (folder / "prometheus.yaml").write_text(json.dumps(config))
        self.port = free_port()
        super().__init__([program, f"--config.file={folder / 'prometheus.yaml'}",
                          f"--storage.tsdb.path={folder / 'tsdb'}",
                          f"--web.listen-address=127.0.0.1:{self.port}"], folder / "prometheus.log")
        eventually(self._ready, "Prometheus to be ready")

    def _ready(self):
        if self.child.poll() is not None:
            raise AssertionError(f"Prometheus did not start:\n{self.text()}")
        try:
            return self._get("/-/ready")[0] == 200
        except OSError:
            return False

    def _get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def query(self, expression):
        """The series that an expression has now. Raises AssertionError if it cannot be parsed."""
        status, body = self._get("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        answer = json.loads(body)
        assert status == 200, f"{expression}\n  {answer.get('error')}"
        return answer["data"]["result"]

    def firing(self):
        """Returns {alert: its annotations}."""
        alerts = json.loads(self._get("/api/v1/alerts")[1])["data"]["alerts"]
        return {alert["labels"]["alertname"]: alert["annotations"] for alert in alerts if alert["state"] == "firing"}


class Folder:
    """A temporary folder that is deleted after its test."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="cairn-test-")
        return pathlib.Path(self.path)

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)
