#!/usr/bin/env python3
"""A chat server with the form of OpenAI's API that keeps its KV blocks in Cairn. The model is a stand-in: it takes
30 ms for the keys and values of a block, and answers with how much it computed. Replace `compute` and `answer`.

usage: chat_server.py PORT [CAIRN_URL]
"""

import hashlib
import http.server
import json
import sys
import time

import cairn

SHAPE = cairn.Shape(num_layers=2, outer_dim=2, page_size=16, inner_dim=8, dtype_width_bytes=2)


def compute(tokens):
    time.sleep(0.03)
    return hashlib.shake_128(tokens).digest(SHAPE.block_bytes)


def answer(blocks):
    return f"I have the keys and values of {len(blocks)} blocks."


class Chat(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = "".join(f"[{one['role']}] {one['content']}\n" for one in asked["messages"]).encode()
        # A block's key depends on all tokens up to its end. Only whole blocks are kept.
        ends = range(SHAPE.page_size, len(tokens) + 1, SHAPE.page_size)
        keys = [hashlib.sha256(b"stand-in" + tokens[:end]).digest() for end in ends]
        blocks = list(KEPT.read(keys)) if keys else []
        found = len(blocks)
        blocks += [compute(tokens[end - SHAPE.page_size : end]) for end in ends[found:]]
        if found < len(keys):
            KEPT.write(keys[found:], blocks[found:], parent=keys[found - 1] if found else None)
        self.reply({
            "object": "chat.completion", "model": asked.get("model", "stand-in"),
            "choices": [{"index": 0, "finish_reason": "stop",
                         "message": {"role": "assistant", "content": answer(blocks)}}],
            "usage": {"prompt_tokens": len(tokens),
                      "prompt_tokens_details": {"cached_tokens": found * SHAPE.page_size}}})

    def reply(self, document):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())


port, url = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:7070"
KEPT = cairn.Client(url).cache("chat")
KEPT.make(cairn.CacheConfig(layout=SHAPE, tiers={"pinned": cairn.TierConfig(num_blocks=1024)}))
http.server.ThreadingHTTPServer(("127.0.0.1", port), Chat).serve_forever()
