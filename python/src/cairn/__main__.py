"""A small tool: `python -m cairn --help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from cairn._token import token_from
from cairn.client import Client
from cairn.errors import CairnError, NoAnswer

REFUSED, NO_SERVER = 1, 3  # exit codes; argparse has 2 for wrong arguments


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cairn",
        description="Asks a Cairn server.",
        epilog="Exit codes: 0 done; 1 refused or failed, with the reason on stderr; 2 wrong arguments; "
        "3 no server answered.",
    )
    parser.add_argument(
        "--server",
        default=os.environ.get("CAIRN_SERVER", "http://127.0.0.1:7070"),
        metavar="URL",
        help="http://HOST:PORT, https://HOST:PORT or unix:/PATH (CAIRN_SERVER; http://127.0.0.1:7070)",
    )
    parser.add_argument("--token", help="where the server asks for one (CAIRN_TOKEN)")
    parser.add_argument(
        "--ca",
        default=os.environ.get("CAIRN_CA"),
        metavar="FILE",
        help="certificates that vouch for the server, where the system's do not (CAIRN_CA)",
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS", help="the longest wait (%(default)s)"
    )
    words = parser.add_subparsers(dest="word", required=True, metavar="WORD")
    words.add_parser("status", help="the server and its caches")
    match = words.add_parser("match", help="how long a prefix of the keys is there, and in which tiers")
    match.add_argument("cache")
    match.add_argument("keys", nargs="+", metavar="KEY", help="in hex")
    get = words.add_parser("get", help="a block's bytes, in canonical order, to the standard output")
    get.add_argument("cache")
    get.add_argument("key", metavar="KEY", help="in hex")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments().parse_args(argv)
    try:
        token = token_from(asked.token, "--token") or token_from(os.environ.get("CAIRN_TOKEN"), "CAIRN_TOKEN")
        with Client(asked.server, token, asked.ca, asked.timeout) as client:
            if asked.word == "status":
                status(client)
            elif asked.word == "match":
                match(client, asked.cache, asked.keys)
            else:
                sys.stdout.buffer.write(client.get(asked.cache, asked.key))
    except (CairnError, ValueError) as error:
        print(f"cairn: {error}", file=sys.stderr)
        return NO_SERVER if isinstance(error, NoAnswer) else REFUSED
    return 0


def status(client: Client) -> None:
    system = client.system()
    print(f"cairn {system.version} ({system.runtime}) {system.state}, up {system.uptime_ms // 1000} s")
    for cache in client.caches():
        print(f"{cache.name}: blocks of {cache.block_bytes} bytes")
        for name, tier in cache.tiers.items():
            counts = tier.blocks
            held = "" if counts is None else f", {tier.num_blocks - counts.free} in use"
            print(f"  {name}: {tier.num_blocks} blocks{held}")


def match(client: Client, cache: str, keys: list[str]) -> None:
    found = client.match(cache, keys, lease_ms=0)
    print(f"{found.matched} of {len(keys)}")
    for block in found.blocks:
        print(f"{block.key.hex()} {block.tier} {block.slot}")


if __name__ == "__main__":
    sys.exit(main())
