"""Compares the disk tier with fio, in one run on one disk.

fio moves pieces of the same size at the same depth through io_uring, without the page cache, in a file of the same
length. Called by bench/run.
"""

import json
import pathlib
import shutil
import statistics
import subprocess
import tempfile

TOTAL_BYTES = 1 << 30
ROUNDS = 5  # alternating with fio, so that other load on the machine affects both; the median counts
DEPTH = 16
PIECE_BYTES = 1 << 20


def program(binary, folder, *arguments):
    out = subprocess.run([binary, folder, *map(str, arguments)], capture_output=True, text=True, check=True)
    return json.loads(out.stdout) if out.stdout.strip() else {}


def fio(folder, direction, size):
    out = subprocess.run(
        ["fio", "--name=yardstick", f"--filename={folder / 'fio'}", f"--rw={direction}", f"--bs={size}",
         f"--size={TOTAL_BYTES}", "--ioengine=io_uring", "--direct=1", f"--iodepth={DEPTH}",
         "--output-format=json"], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)["jobs"][0][direction]["bw_bytes"]


def row(name, value, target, unit="ratio", at_least=True, note=""):
    return {"name": name, "value": value, "unit": unit, "target": target, "at_least": at_least, "note": note}


def speeds(binary, folder):
    rows = []
    for block, target in ((2 << 20, 0.90), (64 << 10, 0.80)):
        label = f"{block >> 20} MiB" if block >= 1 << 20 else f"{block >> 10} KiB"
        size = min(block, PIECE_BYTES)
        yard = {"write": [], "read": []}
        ours = {(checks, d): [] for checks in ("checks", "no_checks") for d in yard}
        for number in range(-1, ROUNDS):  # the first one creates the files and does not count
            now = {d: fio(folder, d, size) for d in yard}
            for checks in ("checks", "no_checks"):
                found = program(binary, folder, "speed", block, TOTAL_BYTES // block, DEPTH, PIECE_BYTES, "io_uring", checks)
                for d in yard if number >= 0 else ():
                    ours[checks, d].append(found[f"{d}_bytes_per_s"])
            for d in yard if number >= 0 else ():
                yard[d].append(now[d])
        median = {key: statistics.median(values) for key, values in {**yard, **ours}.items()}
        for d, way in (("write", "pinned to disk"), ("read", "disk to pinned")):
            rows.append(row(f"{way}, blocks of {label}, of fio", median["checks", d] / median[d], target,
                            note=f"fio {median[d] / 1e6:.0f} MB/s, Cairn {median['checks', d] / 1e6:.0f} MB/s"))
        cost = 1 - median["checks", "read"] / median["no_checks", "read"]
        rows.append(row(f"checksums on reads, blocks of {label}", cost, 0.05, "of the speed", at_least=False,
                        note=f"without {median['no_checks', 'read'] / 1e6:.0f} MB/s"))
    return rows


def starts(binary, folder):
    rows = []
    # A million blocks of 4 KiB take 8 GiB with their headers; 8,192 blocks of 2 MiB take 16 GiB.
    for block, count, target in ((4096, 1_000_000, 3000), (2 << 20, 8192, 5000)):
        if shutil.disk_usage(folder).free < (block + 4096) * count * 1.2:
            continue
        program(binary, folder, "fill", block, count)
        times = []
        for _ in range(3):
            found = program(binary, folder, "start", block, count)
            if found["blocks"] != count:
                raise RuntimeError(f"{count - found['blocks']} of {count} blocks did not come back")
            times.append(found["start_ms"])
        rows.append(row(f"start with {count:,} blocks of {block:,} bytes", statistics.median(times), target, "ms",
                        at_least=False))
        shutil.rmtree(folder / "disk")
    return rows


def measure(binary):
    with tempfile.TemporaryDirectory(prefix="cairn-bench-", dir=pathlib.Path.cwd()) as name:
        folder = pathlib.Path(name)
        rows = speeds(binary, folder)
        for leftover in folder.iterdir():
            leftover.unlink()
        return rows + starts(binary, folder)
