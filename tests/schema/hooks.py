"""Teaches schemathesis the server's other format."""

import msgpack
import schemathesis


def packable(value):
    """Numbers that MessagePack has no integers for are floats, as JSON readers without them have it."""
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
