"""Adds the server's second format, MessagePack, to schemathesis."""

import msgpack
import schemathesis


def packable(value):
    """Converts integers that MessagePack cannot express to floats, as some JSON readers do."""
    if isinstance(value, dict):
        return {name: packable(part) for name, part in value.items()}
    if isinstance(value, list):
        return [packable(part) for part in value]
    if isinstance(value, int) and not -2**63 <= value < 2**64:
        return float(value)
    return value


@schemathesis.serializer("application/msgpack")
def to_msgpack(_context, value):
    return msgpack.packb(packable(value))


@schemathesis.deserializer("application/msgpack")
def from_msgpack(_context, response):
    return msgpack.unpackb(response.content, strict_map_key=False)
