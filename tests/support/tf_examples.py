"""TFRecord files, written byte by byte."""

import struct

import pytest


def framed(data):
    """Return a record with its length and checksums."""
    crc32c = pytest.importorskip("google_crc32c", reason="pip install hpcdist[tfrecord]")

    def masked(data):
        crc = crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def _varint(number):
    digits = []
    number &= 2**64 - 1
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def _message(*fields):
    return b"".join(_varint(n << 3 | 2) + _varint(len(data)) + data for n, data in fields)


def example(**features):
    """Return a serialized ``tf.train.Example``."""
    entries = []
    for name, values in features.items():
        if values and isinstance(values[0], bytes):
            kind, data = 1, _message(*((1, value) for value in values))
        elif values and isinstance(values[0], float):
            kind, data = 2, _message((1, struct.pack(f"<{len(values)}f", *values)))
        else:
            kind, data = 3, _message((1, b"".join(map(_varint, values))))
        entries.append((1, _message((1, name.encode()), (2, _message((kind, data))))))
    return _message((1, _message(*entries)))


def records(numbers):
    """Return a file of Examples with ``id``, ``w``, ``pair`` and ``many``."""
    return b"".join(
        framed(example(id=[n], w=[f"w{n}".encode()], pair=[n / 2, 0.25], many=list(range(n % 4))))
        for n in numbers
    )
