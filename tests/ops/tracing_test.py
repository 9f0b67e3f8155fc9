#!/usr/bin/env python3
"""Traces: each traced request gives spans that form a tree, with what each part did; a caller's trace goes on in it;
and a collector that is away, slow or refuses disturbs no request.

usage: tracing_test.py CAIRN_SERVER [TEST...]
"""

import http.server
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import unittest

from support import Folder, Redis, Server, eventually, free_port

SHAPE = {"num_layers": 2, "outer_dim": 2, "page_size": 4, "inner_dim": 8, "dtype_width_bytes": 2}
BLOCK_BYTES = 256
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{CALLER}-01", f"00-{TRACE}-{CALLER}-00"
PROGRAM = None


class Collector:
    """Takes OTLP over HTTP in its JSON form, and keeps the spans. `status` is its answer to the next requests; while
    `open` is not set it does not answer."""

    def __init__(self, port=0):
        self.status = 200
        self.open = threading.Event()
        self.open.set()
        self.requests, self.spans, self.resources = [], [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.open.wait()
                outer.take(self.path, self.headers["Content-Type"], body)
                self.send_response(outer.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # of a client that has ended
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path, content_type, body):
        self.requests.append((path, content_type))
        if self.status != 200:
            return
        for resource in json.loads(body)["resourceSpans"]:
            self.resources.append(values_of(resource["resource"]["attributes"]))
            for scope in resource["scopeSpans"]:
                self.spans += scope["spans"]

    def named(self, name):
        return [span for span in list(self.spans) if span["name"] == name]

    def one(self, name):
        """Waits for the span of this name; there is only one."""
        (span,) = eventually(lambda: self.named(name), f"the span {name}")
        return span

    def stop(self):
        self.open.set()
        self.server.shutdown()
        self.server.server_close()


def values_of(attributes):
    values = {}
    for attribute in attributes:
        ((kind, value),) = attribute["value"].items()
        values[attribute["key"]] = int(value) if kind == "intValue" else value
    return values


def attributes_of(span):
    return values_of(span["attributes"])


class TracingTest(unittest.TestCase):
    def setUp(self):
        self.folder = Folder()
        self.root = pathlib.Path(self.folder.__enter__())
        self.addCleanup(self.folder.__exit__, None, None, None)
        self.collector = Collector()
        self.addCleanup(self.collector.stop)

    def start(self, *flags, tracing=None, **config):
        tracing = {"otlp_endpoint": self.collector.url, **(tracing or {})}
        (self.root / "config.json").write_text(json.dumps({"caches": [], "tracing": tracing, **config}))
        server = Server(PROGRAM, self.root, "--config", self.root / "config.json", "--runtime", "host", *flags)
        self.addCleanup(server.stop, signal.SIGKILL)
        return server

    def make_cache(self, server, **more):
        body = {"layout": SHAPE, "tiers": {"pinned": {"num_blocks": 8}, "disk": {"num_blocks": 32}}, **more}
        status, answer = server.call("PUT", "/v1/caches/c", body)
        self.assertEqual(status, 201, answer)

    def put(self, server, key, **headers):
        block = bytes.fromhex(key) * (BLOCK_BYTES // 8)
        status, answer = server.call("PUT", f"/v1/caches/c/keys/{key}", block, headers)
        self.assertEqual(status, 201, answer)

    def spans_that_were(self, server, result):
        text = server.call("GET", "/metrics")[1].decode()
        line = next(line for line in text.splitlines() if line.startswith(f'cairn_trace_spans_total{{result="{result}"'))
        return float(line.split()[-1])

    def test_a_callers_trace_goes_on(self):
        server = self.start()
        self.make_cache(server)
        keys = [f"{number:016x}" for number in range(1, 4)]
        for key in keys:
            self.put(server, key)
        status, match = server.call("POST", "/v1/caches/c/match", {"keys": [*keys, "99" * 8]},
                                    {"traceparent": SAMPLED})
        self.assertEqual((status, match["matched"]), (200, 3))
        part = self.collector.one("match")
        root = self.collector.one("POST /v1/caches/{cache}/match")
        self.assertEqual((root["traceId"], root["parentSpanId"]), (TRACE, CALLER))
        self.assertEqual((part["traceId"], part["parentSpanId"]), (TRACE, root["spanId"]))
        self.assertEqual((root["kind"], part["kind"]), (2, 1))
        self.assertLessEqual({"http.request.method": "POST", "http.response.status_code": 200,
                              "http.route": "/v1/caches/{cache}/match", "cairn.cache": "c"}.items(),
                             attributes_of(root).items())
        self.assertEqual(attributes_of(part), {"cairn.keys": 4, "cairn.matched": 3, "cairn.blocks.pinned": 3})
        times = [int(span[at]) for span in (root, part) for at in ("startTimeUnixNano", "endTimeUnixNano")]
        self.assertTrue(times[0] <= times[2] <= times[3] <= times[1], times)
        self.assertEqual(self.collector.requests[0], ("/v1/traces", "application/json"))
        self.assertEqual(self.collector.resources[0]["service.name"], "cairn-server")

    def test_writes_and_reads_say_what_they_moved(self):
        server = self.start()
        self.make_cache(server)
        self.put(server, "ab" * 8)
        write = attributes_of(self.collector.one("write"))
        self.assertEqual(write, {"cairn.tier": "pinned", "cairn.blocks": 1, "cairn.bytes": BLOCK_BYTES,
                                 "cairn.stored_before": 0})
        self.assertEqual(server.call("GET", f"/v1/caches/c/keys/{'ab' * 8}")[0], 200)
        read = attributes_of(self.collector.one("read"))
        self.assertEqual(read, {"cairn.tier": "pinned", "cairn.bytes": BLOCK_BYTES})

    def test_an_onboard_ends_with_its_transfer(self):
        server = self.start()
        self.make_cache(server)
        self.put(server, "cd" * 8)
        server.call("POST", "/v1/caches/c/drain", {"wait_ms": 10_000})
        server.call("POST", "/v1/caches/c/evict", {"keys": ["cd" * 8], "tier": "pinned"})
        status, match = server.call("POST", "/v1/caches/c/match",
                                    {"keys": ["cd" * 8], "onboard": "pinned", "wait_ms": 10_000})
        self.assertEqual((status, match["matched"]), (200, 1), match)
        onboard, part = self.collector.one("onboard"), self.collector.one("match")
        self.assertEqual(onboard["parentSpanId"], part["spanId"])
        described = attributes_of(onboard)
        self.assertEqual(described.pop("cairn.transfer"), match["transfer"])
        self.assertEqual(described, {"cairn.to": "pinned", "cairn.blocks": 1, "cairn.bytes": BLOCK_BYTES,
                                     "cairn.state": "done"})

    @unittest.skipUnless(shutil.which("redis-server"), "there is no redis-server")
    def test_a_shared_lookup_and_its_fetch_are_parts_of_the_match(self):
        redis = Redis(self.root)
        self.addCleanup(redis.stop, signal.SIGKILL)
        server = self.start("--shared", f"redis://{redis.address}",
                            shared={"match_deadline_us": 10_000_000, "url": f"redis://{redis.address}"})
        self.make_cache(server, shared={"store": "redis", "write": "on_commit"})
        # A block that is stored before the server has reached the store does not go there.
        eventually(lambda: server.call("GET", "/v1/system")[1]["shared"]["ready"], "the store")
        self.put(server, "ef" * 8)
        ask = ["redis-cli", "-p", redis.address.split(":")[1], "dbsize"]
        eventually(lambda: subprocess.run(ask, capture_output=True, check=True).stdout.strip() == b"1", "the value")
        self.assertEqual(server.call("DELETE", "/v1/caches/c")[0], 204)
        self.make_cache(server, shared={"store": "redis", "write": "on_commit"})
        eventually(lambda: server.call("POST", "/v1/caches/c/match",
                                       {"keys": ["ef" * 8], "wait_ms": 10_000},
                                       {"traceparent": SAMPLED})[1]["matched"] == 1, "the block")
        fetch = self.collector.one("fetch")
        parent = next(span for span in self.collector.named("match") if span["spanId"] == fetch["parentSpanId"])
        look = next(span for span in self.collector.named("shared lookup")
                    if span["parentSpanId"] == parent["spanId"])
        self.assertEqual(attributes_of(look), {"cairn.keys": 1, "cairn.blocks": 1})
        self.assertEqual(attributes_of(fetch)["cairn.blocks"], 1)

    def test_what_the_caller_does_not_trace_is_not_traced(self):
        server = self.start()
        server.call("GET", "/v1/caches", headers={"traceparent": NOT_SAMPLED})
        server.call("GET", "/healthz")
        server.call("GET", "/v1/devices", headers={"traceparent": SAMPLED})
        self.collector.one("GET /v1/devices")
        self.assertEqual(len(self.collector.spans), 1)

    def test_a_share_of_zero_leaves_callers_traces(self):
        server = self.start(tracing={"sample": 0})
        for _ in range(20):
            server.call("GET", "/v1/caches")
        server.call("GET", "/v1/devices", headers={"traceparent": SAMPLED})
        self.collector.one("GET /v1/devices")
        self.assertEqual(len(self.collector.spans), 1)

    def test_a_refusal_is_no_error_and_a_failure_is_one(self):
        server = self.start()
        self.assertEqual(server.call("GET", "/v1/caches/none")[0], 404)
        span = self.collector.one("GET /v1/caches/{cache}")
        self.assertNotIn("status", span)
        self.assertEqual(attributes_of(span)["http.response.status_code"], 404)

    def test_a_collector_that_comes_back_gets_what_waited(self):
        self.collector.status = 503
        server = self.start()
        server.call("GET", "/v1/devices")
        eventually(lambda: self.collector.requests, "a refused request")
        self.collector.status = 200
        self.collector.one("GET /v1/devices")
        self.assertIn("does not take spans", server.text())
        self.assertIn("takes spans again", server.text())
        self.assertEqual(self.spans_that_were(server, "dropped"), 0)

    def test_a_collector_that_hangs_delays_nobody(self):
        self.collector.open.clear()
        server = self.start()
        for _ in range(5_000):
            self.assertEqual(server.call("GET", "/v1/caches")[0], 200)
        self.assertGreater(self.spans_that_were(server, "dropped"), 0)
        self.assertEqual(server.stop(), 0)

    def test_spans_that_are_refused_are_counted(self):
        self.collector.status = 400
        server = self.start()
        server.call("GET", "/v1/devices")
        eventually(lambda: self.spans_that_were(server, "failed") == 1, "the span to fail")

    def test_without_a_collector_a_stop_is_clean(self):
        self.collector.stop()
        server = self.start(tracing={"otlp_endpoint": f"http://127.0.0.1:{free_port()}/v1/traces"})
        server.call("GET", "/v1/devices")
        self.assertEqual(server.stop(), 0)

    def test_a_wrong_endpoint_is_refused(self):
        for wrong in ("collector:4318", "ftp://collector", "http://"):
            with self.assertRaisesRegex(AssertionError, "tracing.otlp_endpoint"):
                self.start(tracing={"otlp_endpoint": wrong})


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=1)
