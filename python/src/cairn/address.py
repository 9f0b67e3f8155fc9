"""Where a server is: `http://HOST[:PORT]`, `https://HOST[:PORT]` or `unix:/PATH`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Address:
    """Either `path`, of a Unix socket, or `name` and `port`."""

    path: str = ""
    name: str = ""
    port: int = 0
    tls: bool = False

    @property
    def host(self) -> str:
        """As the header `Host` has it. A Unix socket has none: any loopback name does."""
        if self.path:
            return "localhost"
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


def parse_address(url: str) -> Address:
    """A ValueError names what is wrong with the URL, without what may be a password."""
    shown = _shown(url)
    try:
        parts = urlsplit(url)
        port = parts.port
        name = (parts.hostname or "").encode("idna").decode()  # as a header can have it
    except ValueError:  # its text has pieces of the URL
        raise ValueError(f"{shown!r} is no URL") from None
    if parts.scheme == "unix":
        if parts.netloc or not parts.path:
            raise ValueError(f"{shown!r} names no socket: unix:/PATH")
        return Address(path=parts.path)
    if parts.scheme not in ("http", "https") or not name:
        raise ValueError(f"{shown!r} is no server's address: http://HOST:PORT, https://HOST:PORT or unix:/PATH")
    if "@" in parts.netloc:
        raise ValueError(f"{shown!r} has a user or a password; a token is given beside the URL")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"{shown!r} says more than a host and a port")
    tls = parts.scheme == "https"
    return Address(name=name, port=port or (443 if tls else 80), tls=tls)


def _shown(url: str) -> str:
    """The URL for a message: what stands before an @, or behind a ?, may be a password or a token."""
    scheme = re.match(r"(https?|unix):/*", url)
    if "@" in url:
        return f"{scheme.group() if scheme else ''}…"
    return re.split(r"[?#]", url, maxsplit=1)[0]
