#!/usr/bin/env python3
"""Draws figures of a result of `./run bench` as bars (SVG): Cairn beside what was measured in the same run.

usage: picture.py RESULTS.json >docs/figures.svg
"""

import html
import json
import sys

# Rows of the result, and what they say in the picture.
SHOWN = {
    "read of 2 MiB blocks, of nginx's sendfile": "read 2 MiB over HTTP, of nginx's sendfile",
    "read of 2 MiB blocks, of redis GET": "read 2 MiB over HTTP, of Redis GET",
    "load 1000 blocks of 256 KiB into an engine's layers, of its memcpy": "load into an engine's layers, of its memcpy",
    "blocks of 2048 KiB from a shared store, of redis-benchmark GET": "fetch from a shared Redis, of redis-benchmark",
    "blocks of 2048 KiB from another server, of its own HTTP read": "fetch from another server, of its own read",
    "pinned to disk, blocks of 2 MiB, of fio": "write 2 MiB to disk, of fio",
    "read blocks of 2048 KiB of a mapped tier, of own memory": "read a mapped tier, of own memory",
    "disk to pinned, blocks of 2 MiB, of fio": "read 2 MiB from disk, of fio",
    "onboard of 64 blocks of 2 MiB from disk to a device, of fio at depth 16": "disk to device, of fio at depth 16",
    "match of 64 keys, json, of nginx's constant": "match 64 keys in JSON, of nginx's constant",
}
WIDTH, LEFT, ROW, TOP = 820, 360, 28, 40
MOST = 2.75  # the ratio at the right edge


def main():
    result = json.load(open(sys.argv[1]))
    rows = {row["name"]: row for row in result["rows"]}
    shown = [(label, rows[name]) for name, label in SHOWN.items()]
    scale = (WIDTH - LEFT - 70) / MOST
    height = TOP + ROW * len(shown) + 30
    one = LEFT + scale
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
          f'font-size="13" role="img"><title>Rates of Cairn, as multiples of a yardstick in the same run</title>')
    print(f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>')
    print(f'<text x="10" y="22" font-size="15">Rates of Cairn, as multiples of a yardstick in the same run</text>')
    for number, (label, row) in enumerate(shown):
        y = TOP + ROW * number
        width = min(row["value"], MOST) * scale
        print(f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end">{html.escape(label)}</text>')
        print(f'<rect x="{LEFT}" y="{y + 3}" width="{width:.0f}" height="18" rx="2" fill="#1f7a5c"/>')
        print(f'<text x="{LEFT + width + 6:.0f}" y="{y + 17}">{row["value"]:.2f}</text>')
    bottom = TOP + ROW * len(shown)
    print(f'<line x1="{one:.0f}" x2="{one:.0f}" y1="{TOP - 4}" y2="{bottom + 4}" stroke="#8a63d2" stroke-width="2"/>')
    print(f'<text x="{one:.0f}" y="{bottom + 20}" text-anchor="middle" fill="#8a63d2">1 = the yardstick</text>')
    print("</svg>")


if __name__ == "__main__":
    main()
