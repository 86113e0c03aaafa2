from typing import Any

import pytest

from octavo_operator.api.spec import ParallelismSpec, SpecError, parse_service
from support.inference import MODEL, make_object


def test_a_model_is_all_that_must_be_given() -> None:
    service = parse_service(make_object("chat"))
    assert (service.name, service.namespace, service.generation) == ("chat", "team", 1)
    assert service.spec.model.uri == MODEL
    assert service.spec.model.name == "chat"
    assert service.spec.replicas == 1
    assert service.spec.engine.parallelism == ParallelismSpec(tensor=1, pipeline=1)
    assert service.gpus == 0


def test_every_field_is_read() -> None:
    service = parse_service(
        make_object(
            model={"uri": "file:///models/a.gguf", "name": "org/a:1"},
            engine={
                "gpuMemoryUtilization": 0.5,
                "maxNumSeqs": 8,
                "maxModelLen": 4096,
                "dtype": "float16",
                "parallelism": {"tensor": 2, "pipeline": 3},
            },
            resources={"requests": {"cpu": 2}, "limits": {"memory": "4Gi", "nvidia.com/gpu": "6"}},
            replicas=0,
        )
    )
    engine = service.spec.engine
    assert service.spec.model.name == "org/a:1"
    assert (engine.gpu_memory_utilization, engine.max_num_seqs, engine.max_model_len) == (
        0.5,
        8,
        4096,
    )
    assert (engine.dtype, engine.parallelism) == ("float16", ParallelismSpec(tensor=2, pipeline=3))
    assert service.spec.resources.requests == {"cpu": "2"}
    assert service.spec.resources.limits == {"memory": "4Gi", "nvidia.com/gpu": "6"}
    assert (service.spec.replicas, service.gpus) == (0, 6)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"model": {}}, "spec.model.uri"),
        ({"model": {"uri": "hf://a/b"}}, "spec.model.uri"),
        ({"model": {"uri": "file://relative.gguf"}}, "spec.model.uri"),
        ({"model": {"uri": MODEL, "name": "-x"}}, "spec.model.name"),
        ({"model": {"uri": MODEL, "revision": "1"}}, "spec.model.revision"),
        ({"engine": {"gpuMemoryUtilization": 0}}, "spec.engine.gpuMemoryUtilization"),
        ({"engine": {"gpuMemoryUtilization": True}}, "spec.engine.gpuMemoryUtilization"),
        ({"engine": {"maxNumSeqs": 5000}}, "spec.engine.maxNumSeqs"),
        ({"engine": {"maxNumSeqs": "8"}}, "spec.engine.maxNumSeqs"),
        ({"engine": {"maxModelLen": 0}}, "spec.engine.maxModelLen"),
        ({"engine": {"dtype": "int4"}}, "spec.engine.dtype"),
        ({"engine": {"parallelism": {"tensor": 0}}}, "spec.engine.parallelism.tensor"),
        ({"engine": {"parallelism": {"expert": 2}}}, "spec.engine.parallelism.expert"),
        ({"engine": ["a"]}, "spec.engine"),
        ({"resources": {"limits": {"memory": "1 GB"}}}, "spec.resources.limits[memory]"),
        ({"resources": {"claims": []}}, "spec.resources.claims"),
        ({"replicas": -1}, "spec.replicas"),
        ({"replicas": True}, "spec.replicas"),
        ({"routing": {}}, "spec.routing"),
    ],
)
def test_a_wrong_field_is_named_with_what_to_do(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_service(make_object(**spec))
    assert caught.value.path == field
    assert field in str(caught.value)
    assert caught.value.next_action


@pytest.mark.parametrize("name", ["a" * 56, "1st", "a.b", "Chat", "a-"])
def test_a_name_that_cannot_name_a_service_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=r"metadata\.name"):
        parse_service(make_object(name))
