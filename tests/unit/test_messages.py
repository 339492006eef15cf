from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpcdist.errors import CommError
from hpcdist.ps.messages import (
    Header,
    Hello,
    MessageKind,
    decode_header,
    decode_payload,
    difference,
    encode,
    hello_payload,
    parse_hello,
    parse_specs,
    specs_payload,
)
from hpcdist.ps.packets import VarSpec, plan_packets, twin_packets

SPECS = (VarSpec("w@GRAD", (13, 1), "float32"), VarSpec("b@GRAD", (1,), "float32"))
PACKETS = plan_packets(SPECS)
TWINS = twin_packets(PACKETS, {"w@GRAD": "w", "b@GRAD": "b"})
HELLO = Hello(2, True, "f", PACKETS, TWINS)


def test_header_bytes_are_fixed():
    head, body = encode(MessageKind.CLOSE, 3, 258, [1])
    assert head.tobytes() == (
        b"HPCD\x01\x00\x06\x00\x03\x00\x00\x00\x00\x00\x00\x00"
        b"\x02\x01\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00"
    )
    assert body.tobytes() == b"[1]"
    assert decode_header(head) == Header(MessageKind.CLOSE, 3, 258, 3)


def test_messages_survive_the_wire():
    head, body = encode(MessageKind.HELLO, 1, 0, hello_payload(HELLO))
    assert decode_header(head).length == body.nbytes
    assert parse_hello(decode_payload(body)) == HELLO
    assert (
        parse_specs(decode_payload(encode(MessageKind.READ, 0, 0, specs_payload(SPECS))[1]))
        == SPECS
    )
    assert decode_payload(encode(MessageKind.HELLO_OK, 0, 0)[1]) is None


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, 0, "magic"),
        (4, 9, "protocol version differs: expected 1, got 9"),
        (6, 77, "unknown kind 77"),
        (30, 9, "payload of .* bytes, at most"),
    ],
)
def test_a_damaged_header_is_refused(position, value, message):
    head = encode(MessageKind.READ, 0, 0)[0].copy()
    head[position] = value
    with pytest.raises(CommError, match=message):
        decode_header(head)


def test_a_short_header_is_refused():
    with pytest.raises(CommError, match="32 bytes, got 31"):
        decode_header(encode(MessageKind.READ, 0, 0)[0][:31])


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe", b"[1] 2"])
def test_a_payload_that_is_not_json_is_refused(text):
    with pytest.raises(CommError, match="not JSON"):
        decode_payload(np.frombuffer(text, np.uint8))


@pytest.mark.parametrize(
    "payload",
    [
        None,
        3,
        [],
        {},
        {**hello_payload(HELLO), "gradients": 5},
        {**hello_payload(HELLO), "trainers": "x"},
    ],
)
def test_a_malformed_hello_is_refused(payload):
    with pytest.raises(CommError, match="malformed message: HELLO"):
        parse_hello(payload)


@pytest.mark.parametrize("payload", [None, 7, [["w", [1]]], [["w", "x", "float32"]]])
def test_malformed_variables_are_refused(payload):
    with pytest.raises(CommError, match="malformed message: list of variables"):
        parse_specs(payload)


def test_every_answer_has_the_size_of_its_gradients():
    with pytest.raises(CommError, match=r"gradients of \[56\] bytes and parameters of \[\]"):
        Hello(2, True, "f", PACKETS, ())


def other(specs):
    packets = plan_packets(specs)
    return replace(HELLO, gradients=packets, parameters=packets)


@pytest.mark.parametrize(
    ("got", "message"),
    [
        (HELLO, None),
        (replace(HELLO, trainers=3), "number of trainers: expected 2, got 3"),
        (replace(HELLO, sync_mode=False), "sync_mode: expected True, got False"),
        (
            replace(HELLO, fingerprint="g"),
            (
                "program fingerprint: expected f, got g; layers, optimizer, regularizer and the "
                "arguments of transpile must be the same on all ranks, and the program complete "
                "when its startup program runs: servers take over what there is then"
            ),
        ),
        (
            other([replace(SPECS[0], dtype="float64"), SPECS[1]]),
            "gradient w@GRAD: expected w@GRAD float32[13, 1], got w@GRAD float64[13, 1]",
        ),
        (other(SPECS[:1]), "gradient b@GRAD: expected b@GRAD float32[1], got no such variable"),
        (
            other([*SPECS, VarSpec("c@GRAD", (2,), "float32")]),
            "gradient c@GRAD: expected no such variable, got c@GRAD float32[2]",
        ),
        (
            other(SPECS[::-1]),
            "gradient packet 0: expected (w@GRAD, b@GRAD), got (b@GRAD, w@GRAD)",
        ),
        (
            replace(HELLO, parameters=twin_packets(PACKETS, {"w@GRAD": "w", "b@GRAD": "x"})),
            "parameter b: expected b float32[1], got no such variable",
        ),
    ],
)
def test_the_first_difference_is_named(got, message):
    assert difference(HELLO, got) == message
