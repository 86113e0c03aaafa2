"""What the API refuses before any operator sees it, in words that lead on."""

import json
from typing import Any

import pytest

from support.api import Kubectl
from support.inference import MODEL


def manifest(name: str = "chat", **spec: Any) -> str:
    return json.dumps(
        {
            "apiVersion": "serving.octavo.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name},
            "spec": {"model": {"uri": MODEL}, **spec},
        }
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (manifest("1st"), "metadata.name names a Service"),
        (manifest("a" * 56), "at most 55 characters"),
        (manifest(model={"uri": "hf://a/b"}), "must start with package:// or file:///"),
        (manifest(engine={"dtype": "int4"}), 'supported values: "auto", "float32"'),
        (manifest(engine={"gpuMemoryUtilization": 1.5}), "spec.engine.gpuMemoryUtilization"),
        (manifest(engine={"maxNumSeqs": 0}), "spec.engine.maxNumSeqs"),
        (manifest(engine={"maxSeqs": 4}), 'unknown field "spec.engine.maxSeqs"'),
        (manifest(resources={"limits": {"memory": "1 GB"}}), "spec.resources.limits"),
        (manifest(replicas=-1), "spec.replicas"),
        (json.dumps({**json.loads(manifest()), "spec": {}}), "spec.model: Required value"),
    ],
)
def test_what_is_wrong_by_itself_is_refused_at_once(
    kubectl: Kubectl,
    text: str,
    words: str,
) -> None:
    assert words in kubectl.fail("apply", "-f", "-", stdin=text)


def test_what_is_left_out_is_filled_in(kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", "-", stdin=manifest())
    spec = kubectl.json("get", "inferenceservice", "chat")["spec"]
    assert spec["replicas"] == 1
    assert spec["engine"]["parallelism"] == {"tensor": 1, "pipeline": 1}
