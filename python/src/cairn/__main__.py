"""The command `cairn`, also as `python -m cairn`: the server and its programs, and every call of the client."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import cairn
from cairn import command, programs
from cairn.address import token_from
from cairn.client import Client
from cairn.errors import CairnError, NoAnswer
from cairn.model import Match

LLAMA = "llama"  # the command of `cairn.llamacpp`
REFUSED, NO_SERVER = 1, 3  # exit codes; argparse exits with 2 for wrong arguments


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Names the nearest command instead of all seventy."""
        wrong = re.fullmatch(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)", message, re.S)
        if wrong:
            word, words = wrong.groups()
            near = difflib.get_close_matches(word, re.findall(r"[\w-]+", words), 1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; `{self.prog} --help` lists them"
            message = f"there is no command '{word}'{hint}"
        super().error(message)


def arguments() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="cairn",
        description="Starts a Cairn server, or calls one.",
        epilog="`cairn COMMAND --help` lists what a command takes. "
        "Exit codes: 0 done; 1 the server refused or the call failed (the reason is on stderr); 2 wrong arguments; "
        "3 no server answered.",
    )
    parser.add_argument("--version", action="version", version=f"cairn {cairn.__version__}")
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
    for word, program in programs.PROGRAMS.items():
        started = commands.add_parser(word, help=f"start {program}, which takes all that follows", add_help=False)
        started.add_argument("arguments", nargs=argparse.REMAINDER)
    about = "start a proxy that keeps llama-server's prompts in Cairn"
    started = commands.add_parser(LLAMA, help=about, add_help=False)
    started.add_argument("arguments", nargs=argparse.REMAINDER)
    commands.add_parser("status", help="show the server and its caches")
    events = commands.add_parser("events", help="print events of blocks, one JSON object a line, until it is ended")
    events.add_argument("--cache", metavar="NAME", help="only of this cache")
    events.add_argument("--after", type=int, metavar="ID", help="resume after the event with this id")
    events.add_argument(
        "--silence-s", type=float, metavar="SECONDS", help="fail if nothing comes for so long (default: wait)"
    )
    command.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    if given and given[0] == LLAMA:
        return llama(given[1:])
    if given and given[0] in programs.PROGRAMS:  # argparse would take flags of the program for its own
        return programs.become(programs.PROGRAMS[given[0]], given[1:])
    try:
        args = arguments().parse_args(given)
        if args.command == LLAMA:
            return llama(args.arguments)
        if args.command in programs.PROGRAMS:  # after flags of ours, which are not the program's
            return programs.become(programs.PROGRAMS[args.command], args.arguments)
        token = token_from(args.token, "--token") or token_from(os.environ.get("CAIRN_TOKEN"), "CAIRN_TOKEN")
        with Client(args.server, token, args.ca, args.timeout) as client:
            if args.command == "status":
                status(client)
            elif args.command == "events":
                show_events(client, args)
            elif args.command == "match":
                show_match(command.perform(client, args), len(vars(args)["of.keys"]))
            else:
                command.show(command.perform(client, args))
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130  # as a shell reports SIGINT
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (CairnError, ValueError) as error:
        print(f"cairn: {error}", file=sys.stderr)
        return NO_SERVER if isinstance(error, NoAnswer) else REFUSED
    return 0


def llama(arguments: Sequence[str]) -> int:
    from cairn.llamacpp import program  # other commands do not need it

    return program.main(arguments)


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


def show_events(client: Client, args: argparse.Namespace) -> None:
    for event in client.events(cache=args.cache, after=args.after, silence_s=args.silence_s):
        print(json.dumps({"event": event.kind, "id": event.id, **event.data}), flush=True)


def show_match(found: Match, asked: int) -> None:
    print(f"{found.matched} of {asked}")
    for block in found.blocks:
        group = "" if block.kv_group is None else f" {block.kv_group}"
        print(f"{block.key.hex()} {block.tier} {block.slot}{group}")
    if found.lease:
        print(f"lease {found.lease}")


if __name__ == "__main__":
    sys.exit(main())
