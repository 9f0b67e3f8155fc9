"""The command `cairn llama`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence

from cairn.address import parse_address, token_from
from cairn.aio import AsyncClient
from cairn.engine.options import DEFAULT_PINNED_BYTES, DEFAULT_URL, Options
from cairn.engine.report import Report
from cairn.llamacpp.cache import CAIRN_S, PromptCache
from cairn.llamacpp.llama import Llama
from cairn.llamacpp.proxy import Proxy

# The tokens of a block. A prefix ends at a block's end, so the rest, at most this, is computed.
DEFAULT_BLOCK_TOKENS = 32
MAX_BLOCK_TOKENS = 4096
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cairn llama",
        description="Serves llama-server's HTTP and keeps its prompts in Cairn. llama-server must run with "
        "--slot-save-path, and both must see that folder.",
    )
    parser.add_argument(
        "--server", default="http://127.0.0.1:8080", metavar="URL", help="llama-server (default: %(default)s)"
    )
    parser.add_argument(
        "--url",
        default=os.environ.get("CAIRN_SERVER", DEFAULT_URL),
        metavar="URL",
        help=f"Cairn: http://HOST:PORT, https://HOST:PORT or unix:/PATH (default: CAIRN_SERVER, else {DEFAULT_URL})",
    )
    parser.add_argument(
        "--slot-save-path", required=True, metavar="DIR", help="the folder of llama-server's --slot-save-path"
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:8081", metavar="HOST:PORT", help="port 0: any free one (default: %(default)s)"
    )
    parser.add_argument(
        "--pinned-bytes",
        type=_size,
        default=DEFAULT_PINNED_BYTES,
        metavar="SIZE",
        help="memory of the cache, in bytes or as 4GiB; 0: none (default: 4GiB)",
    )
    parser.add_argument(
        "--disk-bytes", type=_size, default=0, metavar="SIZE", help="disk of the cache; 0: none (default: 0)"
    )
    parser.add_argument(
        "--cache", metavar="NAME", help="an existing cache (default: one for each form of keys and values is made)"
    )
    parser.add_argument(
        "--block-tokens",
        type=_block_tokens,
        default=DEFAULT_BLOCK_TOKENS,
        metavar="N",
        help=f"tokens of a block, 1 to {MAX_BLOCK_TOKENS} (default: %(default)s)",
    )
    parser.add_argument(
        "--salt", default="", metavar="TEXT", help="proxies with different texts share no blocks (default: empty)"
    )
    parser.add_argument("--token", help="bearer token, if Cairn requires one (default: CAIRN_TOKEN)")
    parser.add_argument("--ca", default=os.environ.get("CAIRN_CA"), metavar="FILE", help="as for `cairn --ca`")
    parser.add_argument("--verbose", action="store_true", help="log each restore and save")
    parser.epilog = "llama-server's API key for the proxy's own calls is read from LLAMA_API_KEY."
    return parser


def main(argv: Sequence[str]) -> int:
    args = arguments().parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("cairn.llamacpp").setLevel(logging.DEBUG if args.verbose else logging.INFO)
    try:
        return asyncio.run(_serve(args))
    except (ValueError, OSError) as error:
        print(f"cairn llama: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


async def _serve(args: argparse.Namespace) -> int:
    if not os.path.isdir(args.slot_save_path):
        raise ValueError(f"{args.slot_save_path} is no folder")
    if not args.pinned_bytes and not args.disk_bytes:
        raise ValueError("--pinned-bytes and --disk-bytes are both 0")
    parse_address(args.url)
    host, colon, port = args.listen.rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(f"--listen {args.listen} is not HOST:PORT")
    token = token_from(args.token, "--token") or token_from(os.environ.get("CAIRN_TOKEN"), "CAIRN_TOKEN")
    options = Options(args.url, token, args.pinned_bytes, args.disk_bytes, args.cache, args.ca)
    llama = Llama(args.server, token_from(os.environ.get("LLAMA_API_KEY"), "LLAMA_API_KEY"))
    report = Report(logging.getLogger("cairn.llamacpp"))
    async with AsyncClient(args.url, token, args.ca, CAIRN_S) as client:
        cache = PromptCache(llama, client, options, args.slot_save_path, args.block_tokens, args.salt, report)
        proxy = Proxy(llama, cache)
        server = await proxy.listen(host.strip("[]"), int(port))
        print(f"listening on http://{host}:{server.sockets[0].getsockname()[1]}", flush=True)
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        watching = asyncio.create_task(cache.watch())
        await ended.wait()
        server.close()
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        await proxy.close()
    return 0


def _size(text: str) -> int:
    number, unit = text[:-3], UNITS.get(text[-3:])
    if unit is None:
        number, unit = text, 1
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is no size: write bytes, or 512MiB")
    return int(number) * unit


def _block_tokens(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_BLOCK_TOKENS:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to {MAX_BLOCK_TOKENS}")
    return int(text)
