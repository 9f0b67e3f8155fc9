"""Where a server is: `http://HOST[:PORT]`, `https://HOST[:PORT]` or `unix:/PATH`."""

from __future__ import annotations

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
    """A ValueError names what is wrong with the URL."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        if parts.netloc or not parts.path:
            raise ValueError(f"{url!r} names no socket: unix:/PATH")
        return Address(path=parts.path)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no server's address: http://HOST:PORT, https://HOST:PORT or unix:/PATH")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise ValueError(f"{url!r} says more than a host and a port")
    tls = parts.scheme == "https"
    return Address(name=parts.hostname, port=parts.port or (443 if tls else 80), tls=tls)
