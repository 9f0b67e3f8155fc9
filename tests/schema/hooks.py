"""Teaches schemathesis the server's other format."""

import msgpack
import schemathesis


@schemathesis.serializer("application/msgpack")
def to_msgpack(_context, value):
    return msgpack.packb(value)


@schemathesis.deserializer("application/msgpack")
def from_msgpack(_context, response):
    return msgpack.unpackb(response.content, strict_map_key=False)
