"""Compares reads of blocks from disk over HTTP with fio and nginx, in one run on one disk.

fio reads random pieces of a block's size through io_uring, without the page cache, with as many reads in flight as
there are connections. nginx answers the same requests from files of that size, without the page cache and with
threads for its disk, so both include the cost of a request besides the disk. Called by bench/run; by hand, to
compare several servers:

    python3 -B bench/disk_reads.py build/release/cairn-server OTHER_SERVER...
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import over_http

TOTAL_BYTES = 1 << 30
CONNECTIONS = (1, 4, 16, 64)
ROUNDS = 5  # alternating with fio, so that other load on the machine affects all; the median counts
BLOCKS = (64 << 10, 2 << 20)


def key(number):
    return f"{number:016x}"


def label(block_bytes):
    return f"{block_bytes >> 20} MiB" if block_bytes >= 1 << 20 else f"{block_bytes >> 10} KiB"


class Reader:
    """Requests random blocks, out of `count`, from `url`."""

    def wrk(self, connections, seconds):
        """Starts the reads."""
        script = self.folder / "reads.lua"
        script.write_text(f"""
math.randomseed(os.time())
request = function()
  return wrk.format("GET", string.format("/v1/caches/reads/keys/%016x", math.random({self.count}) - 1))
end
done = function(summary, latency)
  io.write(string.format("RESULT %d %d %d %d\\n", summary.bytes, summary.duration, latency:percentile(50),
           summary.errors.status + summary.errors.read + summary.errors.connect + summary.errors.timeout))
end
""")
        return subprocess.Popen(["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), self.url],
                                stdout=subprocess.PIPE, text=True)

    def read(self, connections, seconds):
        """Returns bytes per second, and the median latency in µs."""
        out = self.wrk(connections, seconds).communicate()[0]
        size, duration_us, p50_us, errors = map(int, next(l for l in out.splitlines() if l.startswith("RESULT ")).split()[1:])
        if errors:
            raise RuntimeError(f"{errors} reads failed")
        return size / (duration_us / 1e6), p50_us


class Nginx(Reader):
    """Serves one file for each block, read without the page cache by nginx's own threads."""

    def __init__(self, folder, block_bytes):
        self.folder = folder
        self.count = TOTAL_BYTES // block_bytes
        files = folder / "files"
        files.mkdir(parents=True)
        block = bytes(range(256)) * (block_bytes // 256)
        for number in range(self.count):
            (files / key(number)).write_bytes(block)
        os.sync()
        port = over_http.free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.process = over_http.start_nginx(folder, f"""
  aio threads; directio 512; output_buffers 2 {min(block_bytes, 1 << 20)};
  open_file_cache max={self.count} inactive=1h;
  server {{ listen 127.0.0.1:{port}; location /v1/caches/reads/keys/ {{ alias {files}/; }} }}
""")
        over_http.until_answers(f"{self.url}/v1/caches/reads/keys/{key(0)}", folder / "error.log")

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


class Disk(Reader):
    """A server with a cache whose blocks are on disk. `above`: further tiers, which stay empty."""

    def __init__(self, binary, folder, block_bytes, above={}, spare_blocks=0):
        folder.mkdir()
        self.folder = folder
        self.count = TOTAL_BYTES // block_bytes
        self.server = over_http.Server(binary, "0-1", folder)
        self.url = self.server.url
        shape = {"num_layers": 1, "outer_dim": 2, "page_size": 16, "inner_dim": block_bytes // 64, "dtype_width_bytes": 2}
        over_http.call(self.server.url + "/v1/caches/reads", "PUT",
                       {"layout": shape, "tiers": {"disk": {"num_blocks": self.count + spare_blocks}, **above}})
        step = max(1, (32 << 20) // block_bytes)
        block = bytes(range(256)) * (block_bytes // 256)
        for first in range(0, self.count, step):
            keys = [key(n) for n in range(first, min(self.count, first + step))]
            header = json.dumps({"keys": keys, "tier": "disk"}).encode()
            over_http.call(self.server.url + "/v1/caches/reads/write", "POST",
                           len(header).to_bytes(4, "little") + header + block * len(keys), "application/octet-stream")

    def stop(self):
        self.server.stop()


def fio(folder, block_bytes, depth, seconds):
    out = subprocess.run(
        ["fio", "--name=yardstick", f"--filename={folder / 'fio'}", "--rw=randread", f"--bs={block_bytes}",
         f"--size={TOTAL_BYTES}", "--ioengine=io_uring", "--direct=1", f"--iodepth={depth}", f"--runtime={seconds}",
         "--time_based", "--output-format=json"], capture_output=True, text=True, check=True)
    read = json.loads(out.stdout)["jobs"][0]["read"]
    return read["bw_bytes"], read["clat_ns"]["percentile"]["50.000000"] / 1000


def figures(binaries, folder, block_bytes, seconds):
    """For each number of connections: the median speed and latency of fio, of nginx, and of each binary."""
    servers = [Nginx(folder / "nginx", block_bytes)]
    servers += [Disk(binary, folder / f"server{i}", block_bytes) for i, binary in enumerate(binaries)]
    fio(folder, block_bytes, 16, 1)  # creates its file
    found = {}
    try:
        for connections in CONNECTIONS:
            rounds = [[fio(folder, block_bytes, connections, seconds)] +
                      [server.read(connections, seconds) for server in servers] for _ in range(ROUNDS)]
            found[connections] = [tuple(statistics.median(turn[which][i] for turn in rounds) for i in range(2))
                                  for which in range(1 + len(servers))]
    finally:
        for server in servers:
            server.stop()
    return found


def measure(binary, seconds=2):
    rows = []
    for block_bytes in BLOCKS:
        with tempfile.TemporaryDirectory(prefix="cairn-bench-", dir=pathlib.Path.cwd()) as name:
            found = figures([binary], pathlib.Path(name), block_bytes, seconds)
        for connections, ((yard, yard_us), (nginx, nginx_us), (ours, ours_us)) in found.items():
            rows.append({"name": f"reads of {label(block_bytes)} from disk, {connections} at once, of fio", "value": ours / yard,
                         "unit": "ratio", "target": 0.9 if connections == 16 else None, "at_least": True,
                         "note": f"fio {yard / 1e6:.0f} MB/s, nginx {nginx / 1e6:.0f} MB/s {nginx_us:.0f} us, "
                                 f"Cairn {ours / 1e6:.0f} MB/s {ours_us:.0f} us"})
            rows.append({"name": f"reads of {label(block_bytes)} from disk, {connections} at once, of nginx", "value": ours / nginx,
                         "unit": "ratio", "target": None})
            if connections == 1:
                rows.append({"name": f"latency of a read of {label(block_bytes)} from disk, of 1.3 x fio + 40 us",
                             "value": ours_us / (1.3 * yard_us + 40), "unit": "ratio", "target": 1.0, "at_least": False,
                             "note": f"fio {yard_us:.0f} us, Cairn {ours_us:.0f} us"})
    return rows


def main():
    for block_bytes in BLOCKS:
        with tempfile.TemporaryDirectory(prefix="cairn-bench-", dir=pathlib.Path.cwd()) as name:
            found = figures(sys.argv[1:], pathlib.Path(name), block_bytes, 2)
        for connections, results in found.items():
            print(block_bytes >> 10, "KiB", connections, "at once:",
                  ", ".join(f"{speed / 1e6:.0f} MB/s {p50_us:.0f} us" for speed, p50_us in results), flush=True)


if __name__ == "__main__":
    main()
