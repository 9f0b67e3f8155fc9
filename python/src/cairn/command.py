"""A client's calls as commands: the arguments are those of the call, the answer is printed as JSON."""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import pathlib
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from cairn._base import ClientBase, Verb
from cairn.client import Client
from cairn.decode import decode, encode
from cairn.errors import BadAnswer
from cairn.http import Buffer
from cairn.model import Key

# They pass file descriptors from process to process.
NOT_HERE = frozenset({"export", "put_agent"})
# Arguments that a command has and a method has not.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {"match": {"lease_ms": 0}}


def add_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds a command for each call. `perform` does what was parsed."""
    for name, verb in vars(ClientBase).items():
        if isinstance(verb, Verb) and name not in NOT_HERE:
            _add(commands, name, verb.make)


def _add(commands: argparse._SubParsersAction[Any], name: str, make: Callable[..., Any]) -> None:
    about = inspect.getdoc(make) or ""
    parser = commands.add_parser(
        name.replace("_", "-"),
        help=about.split("\n\n")[0].replace("\n", " ").replace("%", "%%"),
        description=about.replace("%", "%%"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(verb=name)
    hints = typing.get_type_hints(make)
    parameters = list(inspect.signature(make).parameters.values())
    positional = [parameter for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    for parameter in parameters:
        kind = _without_none(hints[parameter.name])
        shown = parameter.name.replace("_", "-")
        taken: dict[str, Any] = {"default": DEFAULTS.get(name, {}).get(parameter.name)}
        member = _member(kind)
        if member is None:
            taken.update(_one(kind))
        elif parameter in positional and parameter is not positional[-1]:
            taken.update(type=functools.partial(_parted, _one(member)["type"]), help="separated by commas")
        else:
            taken.update(_one(member), nargs="+")
        if parameter in positional:
            if parameter.default is not parameter.empty:
                taken["nargs"] = "?"
            parser.add_argument("of." + parameter.name, metavar=shown.upper(), **taken)
            continue
        if kind is bool:
            taken = {"default": None, "action": argparse.BooleanOptionalAction}
        elif "choices" not in taken:
            taken["metavar"] = shown.upper()
        parser.add_argument("--" + shown, dest="of." + parameter.name, **taken)


def perform(client: Client, args: argparse.Namespace) -> Any:
    """Makes the call that `args` names, and returns its answer."""
    given = {name[3:]: value for name, value in vars(args).items() if name.startswith("of.") and value is not None}
    return getattr(client, args.verb)(**given)


def show(answer: object) -> None:
    """Prints an answer: bytes and text as they are, all else as JSON with bytes in hex."""
    if isinstance(answer, (bytes, bytearray, memoryview)):
        sys.stdout.buffer.write(answer)
    elif isinstance(answer, str):
        print(answer)
    elif answer is not None:
        print(json.dumps(encode(answer), indent=2))


def _without_none(kind: Any) -> Any:
    members = _members(kind)
    rest = tuple(member for member in members if member is not type(None))
    return Union[rest] if len(rest) < len(members) else kind  # noqa: UP007


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _member(kind: Any) -> Any:
    """The type of the members of a list that is given one by one; None if `kind` is none."""
    if get_origin(kind) is not Sequence:
        return None
    member = _without_none(get_args(kind)[0])
    return member if _is_plain(member) else None


def _is_plain(kind: Any) -> bool:
    return kind in (str, int, float) or _members(kind) in (_members(Key), _members(Buffer))


def _one(kind: Any) -> dict[str, Any]:
    """How argparse takes one value."""
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if _members(kind) == _members(Buffer):
        return {"type": _contents, "help": "a file, or - for standard input"}
    if kind in (int, float):
        return {"type": kind}
    if _is_plain(kind):
        return {"type": str}
    if any(get_origin(member) is Literal for member in _members(kind)):
        words = next(get_args(member) for member in _members(kind) if get_origin(member) is Literal)
        rest: Any = Union[tuple(m for m in _members(kind) if get_origin(m) is not Literal)]  # noqa: UP007
        return {"type": functools.partial(_word_or_json, words, rest), "help": f"{', '.join(words)}, or JSON"}
    return {"type": functools.partial(_json, kind), "help": "JSON, or @FILE with it"}


def _parted(read: Callable[[str], Any], text: str) -> list[Any]:
    return [read(part) for part in text.split(",")]


def _contents(path: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if path == "-" else pathlib.Path(path).read_bytes()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror}") from None


def _word_or_json(words: tuple[str, ...], kind: Any, text: str) -> Any:
    return text if text in words else _json(kind, text)


def _json(kind: Any, text: str) -> Any:
    try:
        value = json.loads(_contents(text[1:]) if text.startswith("@") else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from None
    if isinstance(value, dict) and any(get_origin(member) in (Mapping, dict) for member in _members(kind)):
        return value
    try:
        return decode(kind, value, "it")
    except BadAnswer as error:
        raise argparse.ArgumentTypeError(str(error)) from None
