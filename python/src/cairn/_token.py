"""A bearer token, checked where it comes in."""

from __future__ import annotations

from cairn.errors import WrongArgument


class Token(str):
    """Text like any other. Its repr does not show it, nor does that of what holds it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<token>"


def token_from(given: object, where: str) -> Token | None:
    """The token without the white space around it, which files and shells leave there; None for none. What no
    header can carry is a WrongArgument that names `where` it came from, and not the token."""
    if given is None or given == "":
        return None
    if not isinstance(given, str):
        raise WrongArgument(f"{where} is of the type {type(given).__name__}; it takes a string")
    token = Token(given.strip())
    if not token:
        raise WrongArgument(f"{where} has white space and no token")
    if not all("!" <= character <= "~" for character in token):
        raise WrongArgument(f"{where} has white space, or what is not ASCII, within the token")
    return token
