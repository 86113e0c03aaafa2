"""The name of a full block's content: a hash chain from the first token to the block's last.

    digest(i) = blake2b(digest(i-1) + tokens of block i as little-endian int32 + extras)

The root is fixed, so that a router can compute the same chain from token ids alone.
"""

import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 16
ROOT_DIGEST: Final = blake2b(b"octavo/block-chain/v1", digest_size=DIGEST_BYTES).digest()

HashFunction = Callable[[bytes], bytes]


def hash_block(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


class BlockKey:
    """What a full block holds: its own tokens, and by its parents all tokens before them.

    The digest finds a block; `is_same_content` proves it. So even a weak hash can only miss.
    """

    __slots__ = ("digest", "extras", "parent", "tokens")

    def __init__(
        self, parent: "BlockKey | None", tokens: bytes, extras: bytes, make_digest: HashFunction
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.extras = extras
        above: bytes = ROOT_DIGEST if parent is None else parent.digest
        # Tokens have a fixed length, so where they end and extras begin is never in doubt.
        self.digest: bytes = make_digest(above + tokens + extras)


def is_same_content(one: BlockKey | None, other: BlockKey | None) -> bool:
    """Whether both name the same tokens from the start; quick when they share parent objects."""
    while one is not other:
        if one is None or other is None:
            return False
        if one.tokens != other.tokens or one.extras != other.extras:
            return False
        one, other = one.parent, other.parent
    return True


def encode_tokens(token_ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(token_ids)}i", *token_ids)


def encode_extras(cache_salt: str | None, adapter: str | None = None) -> bytes:
    """Whatever else changes the KV of equal tokens. An empty salt is a salt of its own.

    The adapter's length stands before it, so where it ends and a salt begins is never in doubt.
    """
    extras = b""
    if adapter is not None:
        name = adapter.encode("utf-8", "surrogatepass")
        extras = b"adapter:" + struct.pack("<i", len(name)) + name
    if cache_salt is not None:
        extras += b"salt:" + cache_salt.encode("utf-8", "surrogatepass")
    return extras
