#!/usr/bin/env python3
"""Servers that share a bucket of an S3 that is not ours: what one stored, another finds after both were killed, and
whatever is done to the bucket, no byte is wrong.

usage: bucket_test.py CAIRN_SERVER FOLDER [TEST...]

Installs the small S3 of bucket-requirements.txt into FOLDER, once. CAIRN_TEST_S3 is the endpoint of another S3 with an
empty bucket "blocks"; tests that change its files are left out then.
"""

import http.client
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import unittest

from support import Folder, Process, Redis, Server, eventually, free_port, skip

SHAPE = {"num_layers": 2, "outer_dim": 2, "page_size": 4, "inner_dim": 512, "dtype_width_bytes": 2}
BLOCK_BYTES = 2 * 2 * 4 * 512 * 2
KEYS = [f"{number:016x}" for number in range(1, 61)]
KEYS_ENV = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "a-secret"}
OTHER_S3 = os.environ.get("CAIRN_TEST_S3")
REQUIREMENTS = pathlib.Path(__file__).with_name("bucket-requirements.txt")
PROGRAM = PYTHON = None


def install(folder):
    """Returns the Python of an environment with an S3."""
    folder = pathlib.Path(folder)
    python, marker = folder / "bin" / "python", folder / REQUIREMENTS.name
    if not marker.exists() or marker.read_text() != REQUIREMENTS.read_text():
        for command in ([sys.executable, "-m", "venv", folder],
                        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement",
                         REQUIREMENTS]):
            if subprocess.run(command, capture_output=True, check=False).returncode != 0:
                skip(f"the packages of {REQUIREMENTS.name} cannot be installed")
        marker.write_text(REQUIREMENTS.read_text())
    return python


def block(key):
    """Noise, or bytes that a codec shrinks."""
    noise = random.Random(key).randbytes(BLOCK_BYTES)
    return noise if int(key, 16) % 2 else bytes(byte & 15 for byte in noise)


class S3(Process):
    def __init__(self, folder, port=None):
        self.files = pathlib.Path(folder) / "buckets"
        self.files.mkdir(exist_ok=True)
        (self.files / "blocks").mkdir(exist_ok=True)
        self.port = port or free_port()
        super().__init__([PYTHON, "-m", "localbucket", "--port", str(self.port), str(self.files)],
                         pathlib.Path(folder) / "s3.log")
        self.endpoint = f"http://127.0.0.1:{self.port}"
        eventually(self._answers, "the S3 to answer")

    def _answers(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/blocks?list-type=2")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def objects(self):
        """The objects of blocks, as files."""
        return sorted(path for path in (self.files / "blocks").rglob("*") if path.is_file() and path.name[0].isdigit())


class BucketTest(unittest.TestCase):
    def setUp(self):
        folder = Folder()
        self.root = folder.__enter__()
        self.addCleanup(folder.__exit__)
        self.prefix = f"test-{random.SystemRandom().randrange(1 << 48):x}"
        self.s3 = None
        self.endpoint = OTHER_S3
        if not OTHER_S3:
            self.s3 = S3(self.root)
            self.addCleanup(lambda: self.s3.stop(signal.SIGKILL))
            self.endpoint = self.s3.endpoint
        self.started = 0

    def start(self, redis=None, shared=None, **s3):
        self.started += 1
        folder = self.root / f"server{self.started}"
        folder.mkdir()
        settings = {"bucket": "blocks", "endpoint": self.endpoint, "prefix": self.prefix, "linger_ms": 100,
                    "poll_ms": 200, **s3}
        url = {"url": redis} if redis else {}
        config = {"shared": {"s3": settings, "match_deadline_us": 10_000_000, **url},
                  "caches": [{"name": "c", "layout": SHAPE, "tiers": {"pinned": {"num_blocks": 200}},
                              "shared": shared or {"store": "s3"}}]}
        (folder / "config.json").write_text(json.dumps(config))
        server = Server(PROGRAM, folder, "--config", folder / "config.json", env={**os.environ, **KEYS_ENV})
        self.addCleanup(server.stop, signal.SIGKILL)
        eventually(lambda: server.call("GET", "/readyz")[0] == 200, "the server to be ready")
        return server

    def shared(self, server):
        return server.call("GET", "/v1/system")[1]["shared"]

    def put_all(self, server, stores=1):
        eventually(lambda: self.shared(server)["ready"], "the first listing")
        for key, parent in zip(KEYS, [None, *KEYS]):
            query = f"?parent={parent}" if parent else ""
            status, body = server.call("PUT", f"/v1/caches/c/keys/{key}{query}", block(key))
            self.assertEqual(status, 201, body)
        eventually(lambda: self.counted(server, 'cairn_shared_blocks_total{cache="c",event="stored"}')
                   == stores * len(KEYS), "the blocks to be stored")

    def counted(self, server, series):
        text = server.call("GET", "/metrics")[1].decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(series))

    def match(self, server):
        """How many blocks of the prefix the server has, after it fetched what it could. Their bytes are right."""
        _, found = server.call("POST", "/v1/caches/c/match", {"keys": KEYS, "wait_ms": 60_000})
        for key in KEYS[: found["matched"]]:
            status, bytes_ = server.call("GET", f"/v1/caches/c/keys/{key}")
            self.assertEqual((status, bytes_ == block(key)), (200, True), key)
        return found["matched"]

    def test_a_second_server_finds_what_a_killed_one_stored(self):
        first = self.start()
        self.put_all(first)
        first.stop(signal.SIGKILL)
        second = self.start()
        eventually(lambda: self.shared(second)["ready"], "the first listing")
        before = self.counted(second, 'cairn_shared_bucket_requests_total{call="get"}')
        self.assertEqual(self.match(second), len(KEYS))
        # Neighbours are read with one request.
        reads = self.counted(second, 'cairn_shared_bucket_requests_total{call="get"}') - before
        self.assertLessEqual(reads, self.counted(second, "cairn_shared_bucket_objects"))
        self.assertEqual(self.shared(second)["store"], "s3")
        second.stop(signal.SIGKILL)
        third = self.start()
        eventually(lambda: self.match(third) == len(KEYS), "the blocks")

    def test_servers_that_run_find_each_others_blocks(self):
        first, second = self.start(), self.start()
        self.put_all(first)
        eventually(lambda: self.match(second) == len(KEYS), "the other's objects")

    def test_no_secret_is_in_the_log_or_in_the_answers(self):
        server = self.start()
        self.put_all(server)
        for text in (server.text(), json.dumps(server.call("GET", "/v1/system")[1]),
                     json.dumps(server.call("GET", "/v1/caches/c")[1]), server.call("GET", "/metrics")[1].decode(),
                     pathlib.Path(f"/proc/{server.child.pid}/cmdline").read_text()):
            self.assertNotIn("a-secret", text)

    @unittest.skipIf(OTHER_S3, "its files cannot be changed")
    def test_flipped_bytes_in_the_bucket_are_misses(self):
        first = self.start()
        self.put_all(first)
        first.stop(signal.SIGKILL)
        seed = random.SystemRandom().randrange(1 << 32)
        print(f"seed {seed}")
        chance = random.Random(seed)
        for path in self.s3.objects():
            content = bytearray(path.read_bytes())
            # A byte of a value; a directory of which one is changed hides its whole object.
            at = chance.randrange(BLOCK_BYTES)
            content[at] ^= 1 << chance.randrange(8)
            path.write_bytes(content)
        second = self.start()
        eventually(lambda: self.shared(second)["ready"], "the first listing")
        self.assertLess(self.match(second), len(KEYS))
        self.assertGreater(self.counted(second, "cairn_shared_wrong_values_total"), 0)

    @unittest.skipIf(OTHER_S3, "its files cannot be changed")
    def test_deleted_and_cut_objects_are_misses(self):
        first = self.start(object_bytes=65_536)
        self.put_all(first)
        first.stop(signal.SIGKILL)
        second = self.start()
        eventually(lambda: self.shared(second)["ready"], "the first listing")
        objects = self.s3.objects()
        self.assertGreater(len(objects), 3)
        objects[1].unlink()
        objects[2].write_bytes(objects[2].read_bytes()[:100])
        self.assertLess(self.match(second), len(KEYS))
        third = self.start()
        eventually(lambda: self.shared(third)["ready"], "the first listing")
        self.assertLess(self.match(third), len(KEYS))
        # Missing blocks may be stored again.
        for key, parent in zip(KEYS, [None, *KEYS]):
            third.call("PUT", f"/v1/caches/c/keys/{key}" + (f"?parent={parent}" if parent else ""), block(key))
        fourth = self.start()
        eventually(lambda: self.match(fourth) == len(KEYS), "the blocks that were stored again")

    @unittest.skipIf(OTHER_S3, "it cannot be stopped")
    def test_a_stopped_s3_is_a_miss_and_disturbs_nobody(self):
        first = self.start()
        self.put_all(first)
        second = self.start()
        eventually(lambda: self.shared(second)["ready"], "the first listing")
        port = self.s3.port
        self.s3.stop(signal.SIGKILL)
        self.assertEqual(self.match(second), 0)
        self.assertEqual(self.match(first), len(KEYS))
        self.assertEqual(second.call("GET", "/readyz")[0], 200)
        self.s3 = S3(self.root, port)
        eventually(lambda: self.match(second) == len(KEYS), "the S3 to be used again")

    def test_of_two_stores_the_redis_is_the_first_even_if_it_is_away(self):
        server = self.start(redis=f"redis://127.0.0.1:{free_port()}")
        self.assertEqual(self.shared(server)["store"], "redis")

    def test_a_codec_makes_objects_smaller(self):
        first = self.start(shared={"store": "s3", "codec": "bytes"})
        self.put_all(first)
        plain = len(KEYS) * BLOCK_BYTES
        self.assertLess(self.counted(first, 'cairn_shared_bucket_bytes{state="live"}'), 0.8 * plain)
        second = self.start()
        eventually(lambda: self.match(second) == len(KEYS), "the blocks, without a codec of its own")

    def test_a_bucket_keeps_what_the_redis_before_it_has_lost(self):
        shared = [{"store": "redis", "codec": "bytes"}, {"store": "s3", "write": "on_commit"}]
        near = Redis(self.root)
        first = self.start(redis=f"redis://{near.address}", shared=shared)
        self.put_all(first, stores=2)
        first.stop(signal.SIGKILL)
        near.stop(signal.SIGKILL)
        near = Redis(self.root)
        self.addCleanup(lambda: near.stop(signal.SIGKILL))
        second = self.start(redis=f"redis://{near.address}", shared=shared)
        eventually(lambda: self.shared(second)["ready"], "both stores")
        self.assertEqual(self.match(second), len(KEYS))
        # What came from the bucket is in the Redis now, for the next server.
        eventually(lambda: self.counted(second, 'cairn_shared_blocks_total{cache="c",event="stored"}') == len(KEYS),
                   "the blocks to be near again")
        second.stop(signal.SIGKILL)
        if self.s3:
            self.s3.stop(signal.SIGKILL)
        third = self.start(redis=f"redis://{near.address}", shared=shared)
        eventually(lambda: self.match(third) == len(KEYS), "the blocks of the Redis alone")

    def test_wrong_settings_say_which(self):
        for wrong, named in (({"bucket": "a/b"}, "shared.s3.bucket"), ({"endpoint": "s3.example"}, "shared.s3.endpoint"),
                             ({"prefix": "/x"}, "shared.s3.prefix"), ({"buckets": 1}, "shared.s3.buckets"),
                             ({"credentials_file": "/nowhere"}, "/nowhere"), ({"connections": 0}, "connections")):
            with self.assertRaisesRegex(AssertionError, named):
                self.start(**wrong)


if __name__ == "__main__":
    PROGRAM, PYTHON = sys.argv.pop(1), install(sys.argv.pop(1))
    unittest.main(verbosity=1)
