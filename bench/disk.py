"""Measures the disk tier beside fio, in one run on one disk.

fio moves pieces of the same size at the same depth through io_uring, past the page cache, in a file of
the same length. Called by bench/run.
"""

import json
import pathlib
import shutil
import subprocess
import tempfile

TOTAL_BYTES = 2 << 30
DEPTH = 16
PIECE_BYTES = 1 << 20


def program(binary, folder, *arguments):
    out = subprocess.run([binary, folder, *map(str, arguments)], capture_output=True, text=True, check=True)
    return json.loads(out.stdout) if out.stdout.strip() else {}


def fio(folder, direction, size):
    out = subprocess.run(
        ["fio", "--name=yardstick", f"--filename={folder / 'fio'}", f"--rw={direction}", f"--bs={size}",
         f"--size={TOTAL_BYTES}", "--loops=2", "--ioengine=io_uring", "--direct=1", f"--iodepth={DEPTH}",
         "--output-format=json"], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)["jobs"][0][direction]["bw_bytes"]


def row(name, value, target, unit="ratio", at_least=True, note=""):
    return {"name": name, "value": value, "unit": unit, "target": target, "at_least": at_least, "note": note}


def speeds(binary, folder):
    rows = []
    for block, target in ((2 << 20, 0.90), (64 << 10, 0.80)):
        label = f"{block >> 20} MiB" if block >= 1 << 20 else f"{block >> 10} KiB"
        size = min(block, PIECE_BYTES)
        yard = {d: fio(folder, d, size) for d in ("write", "read")}
        ours = {c: program(binary, folder, "speed", block, TOTAL_BYTES // block, DEPTH, PIECE_BYTES, "io_uring", c)
                for c in ("checks", "no_checks")}
        again = {d: fio(folder, d, size) for d in ("write", "read")}
        for direction, way in (("write", "pinned to disk"), ("read", "disk to pinned")):
            base = (yard[direction] + again[direction]) / 2
            value = ours["checks"][f"{direction}_bytes_per_s"] / base
            rows.append(row(f"{way}, blocks of {label}, of fio", value, target, note=f"fio {base / 1e6:.0f} MB/s"))
        cost = 1 - ours["checks"]["read_bytes_per_s"] / ours["no_checks"]["read_bytes_per_s"]
        rows.append(row(f"checksums on reads, blocks of {label}", cost, 0.05, "of the speed", at_least=False))
    return rows


def starts(binary, folder):
    rows = []
    # Blocks of 4 KiB: a million of them are 8 GiB with their headers. 8,192 blocks of 2 MiB are 16 GiB.
    for block, count, target in ((4096, 1_000_000, 3000), (2 << 20, 8192, 5000)):
        if shutil.disk_usage(folder).free < (block + 4096) * count * 1.2:
            continue
        program(binary, folder, "fill", block, count)
        found = program(binary, folder, "start", block, count)
        if found["blocks"] != count:
            raise RuntimeError(f"{count - found['blocks']} of {count} blocks did not come back")
        rows.append(row(f"start with {count:,} blocks of {block:,} bytes", found["start_ms"], target, "ms", at_least=False))
        shutil.rmtree(folder / "disk")
    return rows


def measure(binary):
    with tempfile.TemporaryDirectory(prefix="cairn-bench-", dir=pathlib.Path.cwd()) as name:
        folder = pathlib.Path(name)
        rows = speeds(binary, folder)
        for leftover in folder.iterdir():
            leftover.unlink()
        return rows + starts(binary, folder)
