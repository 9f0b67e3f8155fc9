#!/usr/bin/env python3
"""Each part that `GET /v1/system` lists is used by `./run demo`, or names what it needs and a laptop lacks. So is each
metric of the allocators.

usage: parts_test.py CAIRN_SERVER
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Metrics of the allocators that stay at 0 in a demo, and what they need.
NEEDS = {
    "cairn_allocator_pending_bytes": "a copy in progress",
    "cairn_allocator_bucket_in_use": "a request in progress",
    "cairn_allocator_bucket_misses_total": "more short bodies at once than there are buffers",
    "cairn_allocator_retries_total": "a device without room",
}


def check_allocators(scrape):
    most = {}
    for name, value in re.findall(r"^(cairn_allocator_\w+)\{.*\} (\S+)$", scrape, re.M):
        most[name] = max(most.get(name, 0), float(value))
    assert len(most) > 20, most
    for name, value in sorted(most.items()):
        print(f"{name:42} {value:16.6g} {NEEDS.get(name, '')}")
    unused = [name for name, value in most.items() if value == 0 and name not in NEEDS]
    assert not unused, f"the demo leaves at 0: {unused}"
    gone = NEEDS.keys() - most.keys()
    assert not gone, f"there is no metric of an allocator named {gone}"


def main():
    programs = pathlib.Path(sys.argv[1]).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        saved = pathlib.Path(folder) / "system.json"
        subprocess.run([ROOT / "replay" / "demo", programs, "--save-system", saved], check=True, timeout=600)
        parts = json.loads(saved.read_text())["parts"]
        check_allocators(pathlib.Path(f"{saved}.metrics").read_text())
    table = [row for rows in json.loads((ROOT / "server/assets/parts.json").read_text()).values() for row in rows]
    counted = {row["id"]: row for row in table if "use" in row}
    assert parts.keys() == counted.keys(), parts.keys() ^ counted.keys()
    assert len(counted) > 15, f"only {len(counted)} parts have a count"
    unused = []
    for name, row in counted.items():
        use = parts[name][row["use"]["name"]]
        print(f"{name:28} {row['use']['name']:18} {use:12} {row.get('needs', '')}")
        assert parts[name].get("needs") == row.get("needs"), name
        if use == 0 and "needs" not in row:
            unused.append(name)
    assert not unused, f"the demo uses none of: {unused}"
    page = (ROOT / "docs" / "parts.md").read_text()
    for row in table:
        needs = f" (needs: {row['needs']})" if "needs" in row else ""
        assert re.search(rf"^\| {re.escape(row['part'] + needs)} \|", page, re.M), row["part"]


if __name__ == "__main__":
    main()
