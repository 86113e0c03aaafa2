"""What an engine refuses is told to the owner of a spec in fields of the spec."""

import pytest

from octavo_engine.cache_plan import DeviceMemory, plan_cache
from octavo_engine.errors import CannotStart
from octavo_operator.core.wording import in_words_of_the_spec
from octavo_sizing.shape import ModelShape
from octavo_wire.settings import EngineSettings

MIB = 2**20
SHAPE = ModelShape(
    architecture="llama",
    layers=30,
    hidden_size=576,
    intermediate_size=1536,
    attention_heads=9,
    kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    context_length=8192,
    tied_embeddings=True,
)


@pytest.mark.parametrize(
    ("limit_mib", "max_model_len", "fields"),
    [
        (256, None, ["spec.resources.limits.memory", "spec.engine.dtype"]),
        (900, None, ["spec.resources.limits.memory", "spec.engine.maxNumSeqs"]),
        (1400, 8192, ["spec.engine.maxModelLen", "spec.resources.limits.memory"]),
        (4096, 100_000, ["leave it out"]),
        (4096, 1, ["leave it out"]),
    ],
)
def test_next_actions_name_fields_and_no_flags(
    limit_mib: int, max_model_len: int | None, fields: list[str]
) -> None:
    memory = DeviceMemory(
        limit_bytes=limit_mib * MIB, overhead_bytes=250 * MIB, available_bytes=2**40
    )
    settings = EngineSettings(model="m", max_model_len=max_model_len)
    with pytest.raises(CannotStart) as caught:
        plan_cache(settings, SHAPE, memory, element_bytes=4)
    told = in_words_of_the_spec(caught.value.failure.next_action)
    assert "--" not in told
    assert [field for field in fields if field not in told] == []
    assert "--" not in in_words_of_the_spec(caught.value.failure.message)
