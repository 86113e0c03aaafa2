"""Streams cut anywhere, and chunks of both APIs."""

import json
from typing import Any

import pytest

from octavo_bench.events import DONE, EventSplitter, Usage, parse_chunk


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_events_are_the_same_however_the_network_cuts_them(end: bytes) -> None:
    lines = [b'data: {"a": "\xc3\xa4"}', b"", b": a comment", b"", b"event: x", b"data:two"]
    lines += [b"data: lines", b"", b"data: [DONE]", b"", b""]
    stream = end.join(lines)
    expected = [b'{"a": "\xc3\xa4"}', b"two\nlines", DONE]
    for size in (1, 2, 3, 5, len(stream)):
        splitter = EventSplitter()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [data for piece in pieces for data in splitter.feed(piece)] == expected, size


def test_an_event_that_has_not_ended_is_kept_back() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: 2\n") == [b"1"]
    assert splitter.feed(b"\n") == [b"2"]


@pytest.mark.parametrize(
    ("choices", "has_text", "reason"),
    [
        ([{"text": "a", "finish_reason": None}], True, None),
        ([{"text": "", "finish_reason": "stop"}], False, "stop"),
        ([{"delta": {"role": "assistant", "content": ""}}], False, None),
        ([{"delta": {"content": "a"}}], True, None),
        ([{"delta": {"reasoning_content": "hm"}}], True, None),
        ([{"delta": {}, "finish_reason": "length"}], False, "length"),
        ([{"message": {"content": "whole"}, "finish_reason": "stop"}], True, "stop"),
        ([], False, None),
    ],
)
def test_what_carries_text_counts_and_what_opens_or_ends_does_not(
    choices: list[Any], has_text: bool, reason: str | None
) -> None:
    chunk = parse_chunk(json.dumps({"choices": choices}).encode())
    assert (chunk.has_text, chunk.finish_reason, chunk.usage) == (has_text, reason, None)


def test_usage_with_and_without_details() -> None:
    plain = {"prompt_tokens": 3, "completion_tokens": 2}
    details = plain | {"prompt_tokens_details": {"cached_tokens": 1}}
    for usage, cached in ((plain, None), (details, 1)):
        chunk = parse_chunk(json.dumps({"choices": [], "usage": usage}).encode())
        assert chunk.usage == Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=cached)


@pytest.mark.parametrize("error", [{"message": "no room"}, "no room"])
def test_an_error_is_told_in_the_servers_words(error: object) -> None:
    assert parse_chunk(json.dumps({"error": error}).encode()).error == "no room"


@pytest.mark.parametrize("data", [b"", b"<html>", b"[]", b"3"])
def test_what_is_no_chunk_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting value|is an object"):
        parse_chunk(data)
