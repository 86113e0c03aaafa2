"""Protobuf bodies: a Secret as helm sends it, and bytes that nobody should send."""

import pytest

from octavo_local.apiserver.errors import ApiError
from octavo_local.apiserver.protobuf import decode_object


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    parts = []
    while True:
        value, low = value >> 7, value & 0x7F
        parts.append(low | (0x80 if value else 0))
        if not value:
            return bytes(parts)


def envelope(kind: str, message: bytes) -> bytes:
    type_meta = field(1, b"v1") + field(2, kind.encode())
    return b"k8s\x00" + field(1, type_meta) + field(2, message)


def test_a_secret_with_labels_and_data() -> None:
    label = field(1, b"owner") + field(2, b"helm")
    metadata = field(1, b"release") + field(3, b"default") + field(11, label)
    entry = field(1, b"release") + field(2, b"\x00\xff")
    message = field(1, metadata) + field(2, entry) + field(3, b"helm.sh/release.v1")
    assert decode_object(envelope("Secret", message)) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "release", "namespace": "default", "labels": {"owner": "helm"}},
        "data": {"release": "AP8="},
        "type": "helm.sh/release.v1",
    }


def test_options_of_a_delete_with_a_grace_period_of_zero() -> None:
    message = field(1, 0) + field(2, field(1, b"uid-1")) + field(4, b"Background")
    assert decode_object(envelope("DeleteOptions", message)) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "uid-1"},
        "propagationPolicy": "Background",
    }


def test_a_negative_number() -> None:
    decoded = decode_object(envelope("DeleteOptions", field(1, (1 << 64) - 1)))
    assert decoded["gracePeriodSeconds"] == -1


def test_other_kinds_are_refused_with_advice() -> None:
    with pytest.raises(ApiError, match="of kind Deployment; send application/json") as refusal:
        decode_object(envelope("Deployment", b""))
    assert refusal.value.code == 415


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"k8s\x00\x0a",
        b"k8s\x00\x0a\x7f",
        b"k8s\x00" + b"\xff" * 20,
        envelope("Secret", field(1, 5)),
        envelope("Secret", field(5, b"text")),
        envelope("Secret", b"\x0f"),
    ],
)
def test_damaged_bodies_are_a_bad_request(raw: bytes) -> None:
    with pytest.raises(ApiError) as refusal:
        decode_object(raw)
    assert refusal.value.code in (400, 415)
