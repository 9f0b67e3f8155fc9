"""A server's URL and a client's token, both checked when the caller passes them in.

A URL is `http://HOST[:PORT]`, `https://HOST[:PORT]` or `unix:/PATH`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from cairn.errors import WrongArgument


@dataclass(frozen=True)
class Address:
    """Either the `path` of a Unix socket, or `name` and `port`."""

    path: str = ""
    name: str = ""
    port: int = 0
    tls: bool = False

    @property
    def host(self) -> str:
        """The value of the header `Host`. For a Unix socket any loopback name is valid."""
        if self.path:
            return "localhost"
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


def parse_address(url: str) -> Address:
    """Raises ValueError, which says what is wrong with the URL but leaves out anything that may be a password."""
    shown = _shown(url)
    try:
        parts = urlsplit(url)
        port = parts.port
        name = (parts.hostname or "").encode("idna").decode()  # in the form that a header allows
    except ValueError:  # the original text contains pieces of the URL
        raise ValueError(f"{shown!r} is not a valid URL") from None
    if parts.scheme == "unix":
        if parts.netloc or not parts.path:
            raise ValueError(f"{shown!r} has no socket path; write unix:/PATH")
        return Address(path=parts.path)
    if parts.scheme not in ("http", "https") or not name:
        raise ValueError(
            f"{shown!r} is not a server's URL; write http://HOST:PORT, https://HOST:PORT or unix:/PATH"
        )
    if "@" in parts.netloc:
        raise ValueError(f"{shown!r} contains a user or a password; pass a token separately")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"{shown!r} has a path, a query or a fragment; only a host and a port are allowed")
    tls = parts.scheme == "https"
    return Address(name=name, port=port or (443 if tls else 80), tls=tls)


def _shown(url: str) -> str:
    """The URL for an error message. Text before an @ or after a ? may be a password or a token and is left out."""
    scheme = re.match(r"(https?|unix):/*", url)
    if "@" in url:
        return f"{scheme.group() if scheme else ''}…"
    return re.split(r"[?#]", url, maxsplit=1)[0]


class Token(str):
    """A bearer token. Its repr, and that of an object that holds it, does not show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<token>"


def token_from(given: object, where: str) -> Token | None:
    """Returns the token without surrounding white space, which files and shells leave there, or None for None and
    "". Raises WrongArgument if a header cannot carry the token; the text names `where` it came from and does not
    contain it."""
    if given is None or given == "":
        return None
    if not isinstance(given, str):
        raise WrongArgument(f"{where} has type {type(given).__name__}; it must be a string")
    token = Token(given.strip())
    if not token:
        raise WrongArgument(f"{where} has only white space, no token")
    if not all("!" <= character <= "~" for character in token):
        raise WrongArgument(f"{where} has white space or a non-ASCII character inside the token")
    return token
