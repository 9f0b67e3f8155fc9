#!/usr/bin/env python3
"""The README's commands, run as printed.

A block fenced as `sh runs` is given to bash as it stands, all of them in one shell in an empty folder,
in their order, beside a fresh server. Only the address is another, so that tests can run side by side.
A block fenced as `text answers` (or `json answers`) is what the block before it prints; `…` stands for
any text on its line. Also: every word of `./run` and every flag of the server that is named exists.

usage: readme_test.py CAIRN_SERVER
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from support import PATIENCE_S, ROOT, Folder, Server, skip, find_tool

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)
PRINTED_ADDRESS = "127.0.0.1:7070"
MARK = "-- end of block --"


def conversation(text):
    """[(commands, expected output or None)]"""
    steps = []
    for info, body in FENCE.findall(text):
        words = info.split()
        if words == ["sh", "runs"]:
            steps.append([body, None])
        elif words[1:] == ["answers"]:
            assert steps and steps[-1][1] is None, f"no command is answered by:\n{body}"
            steps[-1][1] = body
    return steps


def pattern(expected):
    return r"\n".join(".*".join(re.escape(part) for part in line.split("…"))
                      for line in expected.rstrip("\n").split("\n"))


def run_conversation(steps, server):
    script = ["set -euo pipefail"]
    for commands, _ in steps:
        # As each line is typed: one that fails is a failure of the document.
        script += [commands.replace(PRINTED_ADDRESS, server.address), f"printf '\\n%s\\n' '{MARK}'"]
    work = server.folder / "work"
    work.mkdir()
    done = subprocess.run(["bash", "-c", "\n".join(script)], cwd=work, capture_output=True, text=True,
                          timeout=PATIENCE_S, env={**os.environ, "LC_ALL": "C.UTF-8"})
    outputs = done.stdout.split(f"\n{MARK}\n")
    failures = 0
    for (commands, expected), output in zip(steps, outputs):
        refused = re.search(r'"status":\s*[45]\d\d,', output) and (expected is None or '"status"' not in expected)
        wrong = expected is not None and not re.fullmatch(pattern(expected), output.strip("\n"))
        if refused or wrong:
            failures += 1
            print(f"--- commands\n{commands}--- printed\n{output}\n--- expected\n{expected or 'no problem'}\n")
    if done.returncode != 0:
        failures += 1
        print(f"the shell ended with {done.returncode} after block {len(outputs) - 1}:\n{done.stdout}{done.stderr}")
    return failures


def unknown_names(text, program):
    words = subprocess.run(["bash", ROOT / "run", "help"], capture_output=True, text=True, check=True).stdout
    flags = ""
    for name in (program, *(Path(program).with_name(other) for other in OTHER_PROGRAMS)):
        flags += subprocess.run([name, "--help"], capture_output=True, text=True, check=True).stdout
    unknown = [f"./run {word}" for word in set(re.findall(r"\./run ([a-z]+)", text))
               if not re.search(rf"^  {word}\b", words, re.M)]
    for line in re.findall(r"cairn-server`? (-[^`\n]*)", text) + re.findall(r"`(--[a-z-]+)[^`]*`", text):
        for flag in re.findall(r"(--[a-z][a-z-]+)", line):
            if not re.search(rf"{flag}\b", flags):
                unknown.append(flag)
    return unknown


# Whose flags the README names too.
OTHER_PROGRAMS = ("cairn-replay", "cairnctl")


def main():
    program = sys.argv[1]
    if not find_tool("curl"):
        skip("no curl")
    text = (ROOT / "README.md").read_text()
    steps = conversation(text)
    assert steps, "the README has no block that runs"
    with Folder() as folder:
        server = Server(program, folder)
        failures = run_conversation(steps, server)
        assert server.stop() == 0, server.text()
    unknown = unknown_names(text, program)
    if unknown:
        print("named, but not there:", *unknown)
    print(f"{len(steps)} blocks, {failures} wrong")
    sys.exit(1 if failures or unknown else 0)


if __name__ == "__main__":
    main()
