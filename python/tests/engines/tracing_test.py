"""A trace of a request to `vllm serve`: the caller's id, vLLM's span and Cairn's, in one collector.

With TRACE_PICTURE=FILE the trace of a load is drawn into that file, for the documentation."""

from __future__ import annotations

import base64
import http.server
import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import trace_picture
from actions_test import eventually
from rig import BLOCK_TOKENS, prompt, python
from served import ServedCase

from server import Server

PROMPT_TOKENS = 2000
# vLLM sends Protobuf: its own environment turns that into JSON.
DECODE = """
import base64, json, sys
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
for line in sys.stdin:
    print(json.dumps(MessageToDict(ExportTraceServiceRequest.FromString(base64.b64decode(line)))))
"""


class Collector:
    """Takes OTLP over HTTP in both of its forms."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bodies: list[tuple[bool, bytes]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer._lock:
                    outer._bodies.append(("json" in self.headers["Content-Type"], body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self, trace: str) -> list[tuple[str, dict[str, Any]]]:
        """The spans of a trace, each with the name of its service."""
        with self._lock:
            bodies = list(self._bodies)
        packed = b"\n".join(base64.b64encode(body) for is_json, body in bodies if not is_json)
        decoded = subprocess.run([python(), "-c", DECODE], input=packed, capture_output=True, check=True).stdout
        documents = [json.loads(body) for is_json, body in bodies if is_json]
        packed_documents = [json.loads(line) for line in decoded.splitlines()]
        found = [(service, span) for one in documents for service, span in _spans_of(one)]
        for one in packed_documents:
            for service, span in _spans_of(one):
                for name in ("traceId", "spanId", "parentSpanId"):
                    if name in span:
                        span[name] = base64.b64decode(span[name]).hex()
                found.append((service, span))
        return [(service, span) for service, span in found if span["traceId"] == trace]


def _spans_of(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for resource in document.get("resourceSpans", ()):
        names = {one["key"]: one["value"].get("stringValue") for one in resource["resource"]["attributes"]}
        service = "cairn-server" if names.get("service.name") == "cairn-server" else "vllm"
        found += [(service, span) for scope in resource["scopeSpans"] for span in scope["spans"]]
    return found


def values_of(span: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


class Traced(ServedCase):
    # Blocks of a disk are read and written over HTTP; those in memory are mapped, and the server sees only the match.
    CONNECTOR = {"cairn.disk_bytes": 128 << 20, "cairn.load": "always"}  # noqa: RUF012
    ENVIRONMENT = {  # noqa: RUF012
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "VLLM_SERVER_DEV_MODE": "1",
    }

    def make_server(self) -> Server:
        self.collector = Collector()
        self.addCleanup(self.collector.close)
        return Server("--otlp-endpoint", self.collector.url)

    def traced(self, number: int, tokens: list[int]) -> list[tuple[str, dict[str, Any]]]:
        """Completes a prompt under a trace of that number, and waits for the spans of vLLM and of the look-up."""
        trace, caller = f"{number:032x}", f"{number:016x}"
        self.complete(tokens, {"traceparent": f"00-{trace}-{caller}-01"})

        def is_whole() -> bool:
            names = {span["name"] for _, span in self.collector.spans(trace)}
            return {"match", "llm_request"} <= names

        eventually(is_whole)
        return self.collector.spans(trace)

    def test_a_request_has_the_spans_of_vllm_and_of_cairn_in_its_callers_trace(self) -> None:
        self.FLAGS = ("--otlp-traces-endpoint", f"{self.collector.url}/v1/traces")
        self.serve(self.server.http)
        asked = [value % 200 + 3 for value in prompt(1, PROMPT_TOKENS)]
        whole = (PROMPT_TOKENS - 1) // BLOCK_TOKENS

        cold = self.traced(1, asked)
        (match,) = [span for _, span in cold if span["name"] == "match"]
        self.assertEqual(values_of(match), {"cairn.keys": str(whole), "cairn.matched": "0"})
        eventually(lambda: any(span["name"] == "write" for _, span in self.collector.spans(f"{1:032x}")))

        self.server.until_stored(whole, "disk")
        self.post("/reset_prefix_cache")  # of vLLM itself
        self.traced(2, asked)

        def blocks_read() -> int:
            spans = self.collector.spans(f"{2:032x}")
            return sum(int(values_of(span)["cairn.blocks.disk"]) for _, span in spans if span["name"] == "read")

        eventually(lambda: blocks_read() >= whole)
        self.assertEqual(blocks_read(), whole)
        warm = self.collector.spans(f"{2:032x}")
        (match,) = [span for _, span in warm if span["name"] == "match"]
        self.assertEqual(values_of(match)["cairn.matched"], str(whole))
        roots = {span["name"]: span for _, span in warm if span.get("parentSpanId") == f"{2:016x}"}
        self.assertIn("llm_request", roots)
        self.assertIn("POST /v1/caches/{cache}/match", roots)
        begun, ended = (int(roots["llm_request"][name]) for name in ("startTimeUnixNano", "endTimeUnixNano"))
        self.assertTrue(begun <= int(match["startTimeUnixNano"]) <= int(match["endTimeUnixNano"]) <= ended)
        picture = os.environ.get("TRACE_PICTURE")
        if picture:
            Path(picture).write_text(trace_picture.drawn(warm, "A prompt of 2,000 tokens from Cairn"))
