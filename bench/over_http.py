"""Compares the server over HTTP with nginx and redis, in one run on one machine.

Every figure is a ratio to a yardstick that is measured alternately with it. Absolute numbers say more about the
machine than about the program, and the speed of a shared machine changes by the second. Called by bench/run.
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from statistics import median

KEYS = 64  # of one match: 1,024 tokens in blocks of 16
KEY_BYTES = 8  # a 64-bit block hash, as engines publish them
CONNECTIONS = 16
BLOCK_BYTES = 2 << 20  # a Llama-3-8B block of 16 tokens
WRITE_BYTES = 64 << 10
WRITTEN_BLOCKS = 4096  # 256 MiB
SETS = 8000  # of one measurement, which takes a second
LEASE_MS = 20  # leases expire, because wrk does not read answers


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def call(url, method="GET", body=None, content_type="application/json", accept="application/json"):
    data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method,
                                     headers={"Content-Type": content_type, "Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read(), answer.headers


def cpu_seconds(pid):
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


class Server:
    """The benchmark's own cairn-server, with one network thread, on the given cores."""

    def __init__(self, binary, cores, directory, *flags):
        self.log = open(directory / "server.log", "wb")
        self.process = subprocess.Popen(
            ["taskset", "-c", cores, binary, "--listen", "127.0.0.1:0", "--threads", "1",
             "--data-dir", str(directory / "data"), "--log-level", "warning", *map(str, flags)],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        for line in self.process.stdout:
            if "listening on http://" in line:
                self.url = "http://" + line.split("http://", 1)[1].split()[0]
                break
        else:
            raise RuntimeError("the server did not start: " + (directory / "server.log").read_text())

    def stop(self):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def until_answers(url, log):
    for _ in range(200):
        try:
            call(url)
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{url} does not answer: {log.read_text()}")


def start_nginx(directory, http, *launcher):
    """Starts one worker whose files are all below `directory`. `http` is added to the http section."""
    temporary = " ".join(f"{kind}_temp_path {directory}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (directory / "nginx.conf").write_text(f"""
worker_processes 1; daemon off; pid {directory}/nginx.pid; error_log {directory}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; tcp_nodelay on; keepalive_requests 1000000000; {temporary}
{http}
}}
""")
    return subprocess.Popen(
        [*launcher, "nginx", "-p", str(directory), "-c", str(directory / "nginx.conf"), "-e", str(directory / "error.log"),
         "-g", "user root;" if os.geteuid() == 0 else ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Nginx:
    """One nginx worker that answers a constant at / and serves files below /files with sendfile."""

    def __init__(self, cores, directory, constant):
        self.port = free_port()
        files = directory / "files"
        files.mkdir()
        (files / "block").write_bytes(os.urandom(BLOCK_BYTES))
        # A string in nginx's configuration has at most 4,095 bytes, so the constant is built from several.
        pieces = [constant // 4 + (1 if i < constant % 4 else 0) for i in range(4)]
        sets = " ".join(f'set $c{i} "{"x" * n}";' for i, n in enumerate(pieces))
        self.process = start_nginx(directory, f"""
  sendfile on; tcp_nopush on; client_body_buffer_size 64k;
  server {{
    listen 127.0.0.1:{self.port};
    location = /constant {{ default_type application/json; {sets} return 200 "$c0$c1$c2$c3"; }}
    location /files/ {{ root {directory}; }}
  }}
""", "taskset", "-c", cores)
        self.url = f"http://127.0.0.1:{self.port}"
        until_answers(self.url + "/constant", directory / "error.log")

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def wrk(url, cores, connections, seconds, directory, body=None, content_type=None, accept=None):
    """Returns requests per second, latency percentiles in µs, and errors."""
    script = directory / "request.lua"
    lines = []
    if body is not None:
        (directory / "body").write_bytes(body)
        lines += [f'local f = io.open("{directory}/body", "rb")', 'wrk.method = "POST"',
                  'wrk.body = f:read("*a")', f'wrk.headers["Content-Type"] = "{content_type}"']
    if accept is not None:
        lines.append(f'wrk.headers["Accept"] = "{accept}"')
    lines += ["done = function(summary, latency, requests)",
              '  io.write(string.format("RESULT {\\"requests\\":%d,\\"duration_us\\":%d,\\"bytes\\":%d,'
              '\\"errors\\":%d,\\"p50_us\\":%d,\\"p99_us\\":%d}\\n", summary.requests, summary.duration,'
              ' summary.bytes, summary.errors.connect + summary.errors.read + summary.errors.write +'
              ' summary.errors.status + summary.errors.timeout, latency:percentile(50),'
              ' latency:percentile(99)))', "end"]
    script.write_text("\n".join(lines))
    out = subprocess.run(["taskset", "-c", cores, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s",
                          "-s", str(script), url], capture_output=True, text=True, check=True).stdout
    result = json.loads(next(l for l in out.splitlines() if l.startswith("RESULT "))[7:])
    result["per_second"] = result["requests"] / (result["duration_us"] / 1e6)
    if result["errors"]:
        raise RuntimeError(f"{result['errors']} of {result['requests']} requests to {url} failed")
    return result


def in_turn(seconds, *measurements):
    """Runs the measurements alternately, a second each, so that a change of the machine's speed affects all of
    them. Drops each one's first second."""
    return [[measure() for measure in measurements] for _ in range(1 + seconds)][1:]


def median_ratio(ours, yardstick):
    return median(a["per_second"] / b["per_second"] for a, b in zip(ours, yardstick))


def spread(results):
    rates = sorted(round(r["per_second"]) for r in results)
    return f"{rates[0]}-{rates[-1]}"


def make_cache(url, name, layout, num_blocks):
    call(f"{url}/v1/caches/{name}", "PUT",
         {"layout": layout, "tiers": {"pinned": {"num_blocks": num_blocks, "layout": "fully_contiguous"}}})


def measure_match(binary, directory, seconds):
    server = Server(binary, "0", directory)
    rows = []
    try:
        small = {"num_layers": 1, "outer_dim": 1, "page_size": 16, "inner_dim": 4, "dtype_width_bytes": 1,
                 "alignment": 64}
        make_cache(server.url, "bench", small, 4096)
        cache = server.url + "/v1/caches/bench"
        keys = [(0x9E3779B97F4A7C15 * (i + 1) % (1 << 64)).to_bytes(8, "big") for i in range(KEYS)]
        header = json.dumps({"keys": [k.hex() for k in keys]}).encode()
        call(cache + "/write", "POST", len(header).to_bytes(4, "little") + header + bytes(64 * KEYS),
             "application/octet-stream")
        as_json = json.dumps({"keys": [k.hex() for k in keys], "lease_ms": LEASE_MS}).encode()
        packed = b"".join(keys)
        packed_url = f"{cache}/match?key_bytes={KEY_BYTES}&lease_ms={LEASE_MS}"
        octets = "application/octet-stream"
        answer, _ = call(cache + "/match", "POST", as_json)
        assert json.loads(answer)["matched"] == KEYS, answer[:200]
        packed_answer, _ = call(packed_url, "POST", packed, octets)
        assert json.loads(packed_answer)["matched"] == KEYS
        records, _ = call(packed_url, "POST", packed, octets, octets)
        assert int.from_bytes(records[:4], "little") == KEYS

        any_form = "*/*"
        for form, url, body, kind, accept, said, floor in (
                ("json", cache + "/match", as_json, "application/json", any_form, answer, 0.50),
                ("packed keys", packed_url, packed, octets, any_form, answer, 0.60),
                ("packed", packed_url, packed, octets, octets, records, 0.75)):
            def ours(cores, connections):
                before = cpu_seconds(server.process.pid)
                result = wrk(url, cores, connections, 1, directory, body, kind, accept)
                result["cpu_us"] = (cpu_seconds(server.process.pid) - before) / result["requests"] * 1e6
                return result

            ngx_dir = directory / f"nginx-{form.replace(' ', '-')}"
            ngx_dir.mkdir()
            nginx = Nginx("0", ngx_dir, len(said))
            try:
                rounds = in_turn(seconds, lambda: wrk(nginx.url + "/constant", "1", CONNECTIONS, 1, directory, body, kind),
                                 lambda: ours("1", CONNECTIONS), lambda: ours("0", 1))
            finally:
                nginx.stop()
            yardstick, crowd, alone = zip(*rounds)
            rows += [
                {"name": f"match of {KEYS} keys, {form}, of nginx's constant", "value": median_ratio(crowd, yardstick),
                 "unit": "ratio", "target": floor, "at_least": True,
                 "note": f"{spread(crowd)}/s against {spread(yardstick)}/s, answer of {len(said)} bytes"},
                {"name": f"match of {KEYS} keys, {form}, CPU a request", "value": median(r["cpu_us"] for r in crowd), "unit": "us",
                 "target": 15, "at_least": False, "note": f"least {min(r['cpu_us'] for r in crowd):.1f}"},
                {"name": f"match of {KEYS} keys, {form}, p50 on one core", "value": median(r["p50_us"] for r in alone), "unit": "us",
                 "target": 25, "at_least": False, "note": f"p99 {median(r['p99_us'] for r in alone):.0f} us"},
            ]
    finally:
        server.stop()
    return rows


def measure_reads(binary, directory, seconds):
    server = Server(binary, "0", directory)
    try:
        llama = {"num_layers": 32, "outer_dim": 2, "page_size": 16, "inner_dim": 1024, "dtype_width_bytes": 2}
        make_cache(server.url, "reads", llama, 16)
        url = server.url + "/v1/caches/reads/keys/aa"
        call(url, "PUT", os.urandom(BLOCK_BYTES), "application/octet-stream")
        ngx_dir = directory / "nginx-reads"
        ngx_dir.mkdir()
        nginx = Nginx("0", ngx_dir, 16)
        try:
            rounds = in_turn(seconds, lambda: wrk(nginx.url + "/files/block", "1", 4, 1, directory),
                             lambda: wrk(url, "1", 4, 1, directory))
        finally:
            nginx.stop()
    finally:
        server.stop()
    yardstick, ours = zip(*rounds)
    gb = BLOCK_BYTES / 1e9
    return [{"name": "read of 2 MiB blocks, of nginx's sendfile", "value": median_ratio(ours, yardstick),
             "unit": "ratio", "target": 0.80, "at_least": True,
             "note": f"{median(r['per_second'] for r in ours) * gb:.2f} GB/s against "
                     f"{median(r['per_second'] for r in yardstick) * gb:.2f} GB/s"},
            *redis_reads(directory, seconds, median(r["per_second"] for r in ours))]


def start_redis(directory, *settings):
    """Starts a redis without persistence, waits until it answers, and returns it with its port."""
    port = free_port()
    redis = subprocess.Popen(["taskset", "-c", "0", "redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                              "--appendonly", "no", "--dir", str(directory), *settings], stdout=subprocess.DEVNULL)
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return redis, port
        except OSError:
            time.sleep(0.05)
    redis.kill()
    raise RuntimeError("redis-server did not start")


def redis_reads(directory, seconds, ours_per_second):
    """Redis's figures for a value of the same size: for comparison, not a target."""
    redis, port = start_redis(directory)
    try:
        requests = max(500, int(ours_per_second * seconds / 4))
        out = subprocess.run(["taskset", "-c", "1", "redis-benchmark", "-p", str(port), "-c", "4", "-n", str(requests),
                              "-d", str(BLOCK_BYTES), "-t", "set,get", "--csv"], capture_output=True, text=True, check=True).stdout
        got = next(l for l in out.splitlines() if l.startswith('"GET"')).split(",")[1].strip('"')
    finally:
        redis.terminate()
        redis.wait(30)
    return [{"name": "read of 2 MiB blocks, of redis GET", "value": ours_per_second / float(got), "unit": "ratio",
             "target": None, "note": f"redis {float(got) * BLOCK_BYTES / 1e9:.2f} GB/s"}]


def measure_writes(binary, directory, seconds):
    """The processor time of a PUT of 64 KiB into a full tier, compared with that of a SET into a full redis."""
    server = Server(binary, "0", directory)
    redis, port = start_redis(directory, "--maxmemory", str(WRITTEN_BLOCKS * WRITE_BYTES), "--maxmemory-policy", "allkeys-lru")
    keys = WRITTEN_BLOCKS * 16  # so that almost every write has a new key and evicts another block
    try:
        layout = {"num_layers": 1, "outer_dim": 2, "page_size": 16, "inner_dim": WRITE_BYTES // 64, "dtype_width_bytes": 2}
        make_cache(server.url, "writes", layout, WRITTEN_BLOCKS)
        script = directory / "writes.lua"
        script.write_text(f"""
math.randomseed(os.time())
wrk.method = "PUT"
wrk.body = string.rep("k", {WRITE_BYTES})
wrk.headers["Content-Type"] = "application/octet-stream"
request = function() return wrk.format(nil, string.format("/v1/caches/writes/keys/%016x", math.random({keys}))) end
done = function(summary, latency)
  io.write(string.format("RESULT %d %d\\n", summary.requests,
           summary.errors.status + summary.errors.read + summary.errors.connect + summary.errors.timeout))
end
""")

        def ours():
            before = cpu_seconds(server.process.pid)
            out = subprocess.run(["taskset", "-c", "1", "wrk", "-t1", f"-c{CONNECTIONS}", "-d1s", "-s", str(script), server.url],
                                 capture_output=True, text=True, check=True).stdout
            requests, errors = map(int, next(l for l in out.splitlines() if l.startswith("RESULT ")).split()[1:])
            if errors:
                raise RuntimeError(f"{errors} of {requests} writes failed")
            return (cpu_seconds(server.process.pid) - before) / requests * 1e6

        def theirs():
            before = cpu_seconds(redis.pid)
            subprocess.run(["taskset", "-c", "1", "redis-benchmark", "-p", str(port), "-c", str(CONNECTIONS), "-n", str(SETS),
                            "-r", str(keys), "-d", str(WRITE_BYTES), "-t", "set", "-q"], capture_output=True, check=True)
            return (cpu_seconds(redis.pid) - before) / SETS * 1e6

        rounds = in_turn(seconds, ours, theirs)
    finally:
        redis.terminate()
        redis.wait(30)
        server.stop()
    puts, sets = zip(*rounds)
    return [{"name": "write of a 64 KiB block, CPU of redis SET's", "value": median(a / b for a, b in rounds), "unit": "ratio",
             "target": 1.0, "at_least": False, "note": f"{median(puts):.0f} us against {median(sets):.0f} us"}]


def measure(binary, seconds):
    missing = [tool for tool in ("wrk", "nginx", "redis-server", "redis-benchmark", "taskset") if not shutil.which(tool)]
    if missing:
        raise RuntimeError("missing: " + ", ".join(missing))
    if (os.cpu_count() or 1) < 2:
        raise RuntimeError("the HTTP figures need two cores: one for each side")
    rows = []
    for part in (measure_match, measure_reads, measure_writes):
        with tempfile.TemporaryDirectory(prefix="cairn-bench-") as directory:
            os.chmod(directory, 0o755)
            rows += part(binary, pathlib.Path(directory), seconds)
    return rows
