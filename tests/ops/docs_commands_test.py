#!/usr/bin/env python3
"""Runs the commands of every page as printed; pages.py says how a block is marked.

Each page gets an empty folder, and a fresh server unless one of its blocks starts one. Only addresses and paths
are replaced, so that tests can run in parallel: see `Places`.

usage: docs_commands_test.py CAIRN_SERVER [PAGE...]
"""

import os
import pathlib
import re
import subprocess
import sys

from pages import all_pages
from support import PATIENCE_S, ROOT, Folder, Server, find_tool, free_port, skip

MARK = "-- end of block --"
# A server for the pages has only the caches that the page makes, except for pages that use the one named
# `default`.
NO_CACHES = '{"caches": []}'
# Readers of these pages may have just typed the README's lines; what those left must not disturb.
AFTER_THE_README = ["docs/first-steps.md", "docs/agents.md", "docs/cairnctl.md", "docs/hints.md",
                    "docs/sharing-memory.md", "docs/snapshots.md"]
# Waits until the server of a `serves` block listens. Ends the one started before it first.
START = """
end_server() {{ [[ -z ${{served:-}} ]] || {{ kill "$served"; wait "$served"; served=; }}; }}
serve() {{
  end_server
  : >served.log
  bash -euo pipefail -c "exec env $1" >served.log 2>&1 & served=$!
  for _ in $(seq {tries}); do
    ! grep -q 'listening on' served.log || return 0
    kill -0 "$served" 2>/dev/null || break
    sleep 0.05
  done
  cat served.log >&2
  return 1
}}
"""


# The servers that a page may expect, and other ports that pages use: of chat servers and of a store.
SERVERS = (7070, 7071)
OTHER_PORTS = (8100, 8101, 6380)
# A page that starts its servers in the background.
STARTS_ITSELF = re.compile(r"^build/release/cairn-server .*&", re.M)


class Places:
    """The addresses and paths that pages print, and their replacements in a test."""

    def __init__(self, programs, folder, ports):
        folder = pathlib.Path(folder)
        self.engines = folder / "engines"
        self.socket = folder / "socket"
        self.engines.mkdir()
        self.stands_for = {
            "build/release/cairn-calibrate": "build/release/cairn-calibrate",  # not replaced: built for tests only
            "build/release/": f"{programs}/",
            "examples/": f"{ROOT}/examples/",
            "/dev/shm/engines": str(self.engines),
            "/run/cairn/cairn.sock": str(self.socket),
            **{str(printed): str(port) for printed, port in ports.items()},
        }

    def put_in(self, text):
        pattern = "|".join(rf"\b{printed}\b" if printed.isdigit() else re.escape(printed)
                           for printed in self.stands_for)
        return re.sub(pattern, lambda found: self.stands_for[found[0]], text)


def conversation(page):
    """Returns [(block, expected output or None)]."""
    steps = []
    for block in page.blocks:
        if block.answers:
            assert steps and steps[-1][1] is None, f"{page.name}:{block.line}: no command is answered by this"
            steps[-1][1] = block.text
        elif block.runs or block.serves:
            steps.append([block, None])
    return steps


def command_of(block, places):
    text = places.put_in(block.text)
    if block.serves:
        *before, last = re.sub(r"\\\n", " ", text).strip("\n").split("\n")
        quoted = "'" + last.replace("'", "'\\''") + "'"
        return "\n".join([*before, f"serve {quoted}"])
    if block.language == "python":
        return f"python3 - <<'END OF PYTHON'\n{text}END OF PYTHON"
    return text


def pattern(expected):
    return r"\n".join(".*".join(re.escape(part) for part in line.split("…"))
                      for line in expected.rstrip("\n").split("\n"))


def servers_of(blocks, program, folder, places, ports):
    """The servers that pages expect: on 7070, and on 7071 if a page uses it."""
    text = "".join(block.text for block in blocks)
    if any(block.serves for block in blocks) or STARTS_ITSELF.search(text):
        return []
    servers = []
    for printed in SERVERS:
        port = ports[printed]
        if str(printed) not in text and printed != 7070:
            continue
        own = folder / f"server-{printed}"
        own.mkdir()
        flags = ["--unix", places.socket, "--import-folders", places.engines] if printed == 7070 else []
        servers.append(Server(program, own, *flags, "--runtime", "host", address=f"127.0.0.1:{port}",
                              env=environment(folder, text, places)))
    return servers


def environment(folder, text, places):
    settings = folder / "settings.json"
    settings.write_text(NO_CACHES)
    # Default addresses of the programs that a page starts.
    own = {"LC_ALL": "C.UTF-8", "PYTHONPATH": f"{ROOT}/python/src", "PYTHONDONTWRITEBYTECODE": "1",
           "CAIRN_LISTEN": places.put_in("127.0.0.1:7070"),
           "CAIRN_SERVER": places.put_in("http://127.0.0.1:7070")}
    if "caches/default" not in text:
        own["CAIRN_CONFIG"] = str(settings)
    return {**{name: value for name, value in os.environ.items() if not name.startswith("CAIRN_")}, **own}


def run_pages(pages, program):
    """Runs a page's blocks in order, in one shell beside one server, like a reader would."""
    steps = [[page, *step] for page in pages for step in conversation(page)]
    if not steps:
        return 0
    with Folder() as folder:
        ports = {printed: free_port() for printed in (*SERVERS, *OTHER_PORTS)}
        places = Places(pathlib.Path(program).resolve().parent, folder, ports)
        servers = servers_of([block for _, block, _ in steps], program, folder, places, ports)
        script = ["set -euo pipefail", START.format(tries=PATIENCE_S * 20)]
        for _, block, _ in steps:
            # Runs each line as if typed: a line that fails is an error in the document.
            script += [command_of(block, places), f"printf '\\n%s\\n' '{MARK}'"]
        script += ["end_server", "[[ -z $(jobs -p) ]] || kill $(jobs -p)"]
        work = folder / "work"
        work.mkdir()
        text = "".join(block.text for _, block, _ in steps)
        done = subprocess.run(["bash", "-c", "\n".join(script)], cwd=work, capture_output=True, text=True,
                              timeout=PATIENCE_S * 2, env=environment(folder, text, places))
        failures = 0
        outputs = done.stdout.split(f"\n{MARK}\n")
        for (page, block, expected), output in zip(steps, outputs):
            refused = re.search(r'"status":\s*[45]\d\d,', output) and '"status"' not in (expected or "")
            wrong = expected is not None and not re.fullmatch(pattern(places.put_in(expected)), output.strip("\n"))
            if refused or wrong:
                failures += 1
                print(f"--- {page.name}:{block.line}\n{block.text}--- printed\n{output}\n"
                      f"--- expected\n{expected or 'no problem'}\n")
        if done.returncode != 0:
            failures += 1
            page, block, _ = steps[min(len(outputs), len(steps)) - 1]
            print(f"{page.name}:{block.line}: the shell ended with {done.returncode}\n{done.stdout}{done.stderr}")
        for server in servers:
            assert server.stop() == 0, server.text()
        print(f"{' then '.join(page.name for page in pages)}: {len(steps)} blocks, {failures} wrong")
        return failures


def main():
    program, *names = sys.argv[1:]
    if not find_tool("curl"):
        skip("no curl")
    pages = [page for page in all_pages() if not names or page.name in names]
    assert pages, f"no page is named {names}"
    conversations = [[page] for page in pages]
    if not names:
        by_name = {page.name: page for page in pages}
        conversations += [[by_name["README.md"], by_name[name]] for name in AFTER_THE_README]
    sys.exit(1 if sum(run_pages(each, program) for each in conversations) else 0)


if __name__ == "__main__":
    main()
