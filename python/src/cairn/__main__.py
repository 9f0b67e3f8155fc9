"""A command-line tool: `python -m cairn --help`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from cairn.address import token_from
from cairn.client import Client
from cairn.errors import CairnError, NoAnswer

REFUSED, NO_SERVER = 1, 3  # exit codes; argparse exits with 2 for wrong arguments


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cairn",
        description="Queries a Cairn server.",
        epilog="Exit codes: 0 done; 1 the server refused or the call failed (the reason is on stderr); "
        "2 wrong arguments; 3 no server answered.",
    )
    parser.add_argument(
        "--server",
        default=os.environ.get("CAIRN_SERVER", "http://127.0.0.1:7070"),
        metavar="URL",
        help="http://HOST:PORT, https://HOST:PORT or unix:/PATH (default: CAIRN_SERVER, else http://127.0.0.1:7070)",
    )
    parser.add_argument("--token", help="bearer token, if the server requires one (default: CAIRN_TOKEN)")
    parser.add_argument(
        "--ca",
        default=os.environ.get("CAIRN_CA"),
        metavar="FILE",
        help="PEM file of CA certificates to verify the server with (default: CAIRN_CA, else the system's)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="timeout of a request (default: %(default)s)",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("status", help="show the server and its caches")
    match = commands.add_parser(
        "match", help="show the longest prefix of the keys that a cache holds, and its tiers"
    )
    match.add_argument("cache")
    match.add_argument("keys", nargs="+", metavar="KEY", help="in hex")
    get = commands.add_parser("get", help="write a block's bytes, in canonical order, to standard output")
    get.add_argument("cache")
    get.add_argument("key", metavar="KEY", help="in hex")
    get.add_argument("--kv-group", metavar="GROUP", help="the block's KV group, in a cache that has several")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments().parse_args(argv)
    try:
        token = token_from(args.token, "--token") or token_from(os.environ.get("CAIRN_TOKEN"), "CAIRN_TOKEN")
        with Client(args.server, token, args.ca, args.timeout) as client:
            if args.command == "status":
                status(client)
            elif args.command == "match":
                match(client, args.cache, args.keys)
            else:
                sys.stdout.buffer.write(client.get(args.cache, args.key, kv_group=args.kv_group))
    except (CairnError, ValueError) as error:
        print(f"cairn: {error}", file=sys.stderr)
        return NO_SERVER if isinstance(error, NoAnswer) else REFUSED
    return 0


def status(client: Client) -> None:
    system = client.system()
    print(f"cairn {system.version} ({system.runtime}) {system.state}, up {system.uptime_ms // 1000} s")
    for cache in client.caches():
        groups = ", ".join(f"{group.name} ({group.kind})" for group in cache.kv_groups)
        print(
            f"{cache.name}: KV groups {groups}" if groups else f"{cache.name}: blocks of {cache.block_bytes} bytes"
        )
        for name, tier in cache.tiers.items():
            if tier.num_blocks is None:
                held = "".join(f", {use.blocks} of {group}" for group, use in tier.kv_groups.items())
                print(f"  {name}: {tier.size_bytes} bytes{held}")
                continue
            counts = tier.blocks
            held = "" if counts is None else f", {tier.num_blocks - counts.free} in use"
            print(f"  {name}: {tier.num_blocks} blocks{held}")


def match(client: Client, cache: str, keys: list[str]) -> None:
    found = client.match(cache, keys, lease_ms=0)
    print(f"{found.matched} of {len(keys)}")
    for block in found.blocks:
        group = "" if block.kv_group is None else f" {block.kv_group}"
        print(f"{block.key.hex()} {block.tier} {block.slot}{group}")


if __name__ == "__main__":
    sys.exit(main())
