"""Tests /openapi.json: sends the requests that schemathesis generates from it to a server, and reads a page of
blocks with a generated client.

usage: schema.py SERVER_PROGRAM TOOLS_FOLDER [--max-examples N]"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "ops"))

from support import Folder, Server  # noqa: E402

CACHE = {"layout": {"num_layers": 2, "outer_dim": 2, "page_size": 4, "inner_dim": 8, "dtype_width_bytes": 2},
         "tiers": {"pinned": {"num_blocks": 16}, "disk": {"num_blocks": 16}}}
BLOCK = bytes(2 * 2 * 4 * 8 * 2)

GENERATED = """
import sys
sys.path.insert(0, sys.argv[1])
from cairn_client import Client
from cairn_client.api.blocks import list_blocks
from cairn_client.api.leases import list_leases

client = Client(base_url=sys.argv[2], raise_on_unexpected_status=True)
page = list_blocks.sync(client=client, cache="generated", limit=2)
assert [block.key for block in page.blocks] == ["00", "01"], page
assert page.blocks[0].epoch == 1 and page.blocks[0].tier == "pinned", page
rest = list_blocks.sync(client=client, cache="generated", cursor=int(page.next_cursor))
assert [block.key for block in rest.blocks] == ["02"], rest
assert list_leases.sync(client=client, cache="generated").leases == []
refused = list_blocks.sync(client=client, cache="none")
assert refused.code == "unknown_cache", refused
"""


def run_schemathesis(tools, server, accept, max_examples, checks):
    # The event stream has no end.
    subprocess.run(
        [tools / "bin" / "schemathesis", "--config-file", HERE / "schemathesis.toml", "run",
         f"http://{server.address}/openapi.json", "--exclude-path", "/v1/events", "--max-examples", str(max_examples),
         "--phases", "examples,coverage,fuzzing,stateful", "--continue-on-failure", "--header", f"Accept: {accept}", *checks],
        check=True, cwd=tools,  # schemathesis stores findings in .schemathesis
        env={**os.environ, "PYTHONPATH": str(HERE), "SCHEMATHESIS_HOOKS": "hooks"})


def read_with_generated_client(tools, server, folder):
    assert server.call("PUT", "/v1/caches/generated", CACHE)[0] == 201
    for key in ("00", "01", "02"):
        assert server.call("PUT", f"/v1/caches/generated/keys/{key}", BLOCK)[0] == 201
    # The generated client does not support MessagePack.
    (folder / "config.json").write_text(json.dumps({
        "package_name_override": "cairn_client",
        "content_type_overrides": {"application/msgpack": "application/octet-stream"}}))
    subprocess.run([tools / "bin" / "openapi-python-client", "generate", "--meta", "none", "--fail-on-warning",
                    "--url", f"http://{server.address}/openapi.json", "--config", folder / "config.json",
                    "--output-path", folder / "cairn_client"], check=True,
                   env={**os.environ, "PATH": f"{tools / 'bin'}:{os.environ['PATH']}"})  # the generator runs ruff
    (folder / "page.py").write_text(GENERATED)
    subprocess.run([tools / "bin" / "python3", folder / "page.py", folder, f"http://{server.address}"], check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("tools", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--max-examples", type=int, default=25, help="random requests a route")
    parser.add_argument("--any-refusal", action="store_true",
                        help="a request that breaks no rule of the document may be refused with 400")
    arguments = parser.parse_args()
    tools = arguments.tools
    checks = ["--exclude-checks", "positive_data_acceptance"] if arguments.any_refusal else []
    with Folder() as folder:
        server = Server(arguments.program, folder)
        read_with_generated_client(tools, server, folder)
        for accept in ("application/json, */*;q=0.1", "application/msgpack, */*;q=0.1"):
            run_schemathesis(tools, server, accept, arguments.max_examples, checks)
        assert server.stop() == 0, server.text()


if __name__ == "__main__":
    main()
