import struct
from hashlib import blake2b

import pytest

from octavo_engine.core.block_hash import (
    ROOT_DIGEST,
    BlockKey,
    encode_extras,
    encode_tokens,
    hash_block,
    is_same_content,
)


def chain(*blocks: list[int], salt: str | None = None, adapter: str | None = None) -> BlockKey:
    key = None
    for tokens in blocks:
        key = BlockKey(key, encode_tokens(tokens), encode_extras(salt, adapter), hash_block)
    assert key is not None
    return key


def test_the_digest_is_blake2b_of_parent_tokens_and_extras() -> None:
    first = blake2b(ROOT_DIGEST + struct.pack("<2i", 7, 8), digest_size=16).digest()
    second = blake2b(first + struct.pack("<2i", 9, 300_000), digest_size=16).digest()
    assert chain([7, 8], [9, 300_000]).digest == second


def test_the_root_never_changes_since_routers_compute_it_too() -> None:
    assert ROOT_DIGEST.hex() == "982dae62d964a857b861db3e506d112e"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(chain([1], [2]), chain([1], [2]), True, id="equal tokens"),
        pytest.param(chain([1], [2]), chain([3], [2]), False, id="another first block"),
        pytest.param(chain([1], [2]), chain([2]), False, id="same last block, shorter"),
        pytest.param(chain([1]), chain([1], salt="a"), False, id="salt against none"),
        pytest.param(chain([1]), chain([1], salt=""), False, id="an empty salt is a salt"),
        pytest.param(chain([1], salt="a"), chain([1], salt="b"), False, id="two salts"),
        pytest.param(chain([1]), chain([1], adapter="a"), False, id="adapter against none"),
        pytest.param(chain([1], adapter="a"), chain([1], adapter="b"), False, id="two adapters"),
        pytest.param(chain([1], adapter="a"), chain([1], salt="a"), False, id="adapter, not salt"),
        pytest.param(
            chain([1], adapter="asalt:b"),
            chain([1], adapter="a", salt="b"),
            False,
            id="an adapter that looks like another and a salt",
        ),
    ],
)
def test_content_is_the_same_only_if_every_token_before_is(
    one: BlockKey, other: BlockKey, same: bool
) -> None:
    assert is_same_content(one, other) is same
    assert (one.digest == other.digest) is same
