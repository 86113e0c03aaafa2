"""The real kubectl and our custom resource: what is refused, what is shown, what is scaled."""

import uuid

import pytest
import yaml

from support.api import Kubectl

SERVICE = """
apiVersion: serving.octavo.dev/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {uri: "package://llm/model.gguf"}
"""


def with_spec(**changes: object) -> str:
    manifest = yaml.safe_load(SERVICE)
    manifest["spec"].update(changes)
    return yaml.safe_dump(manifest)


def test_defaults_are_filled_in(kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", "-", stdin=SERVICE)
    spec = kubectl.json("get", "oisvc", "chat")["spec"]
    assert spec["replicas"] == 1
    assert spec["engine"] == {"parallelism": {"tensor": 1, "pipeline": 1}}
    assert "unchanged" in kubectl.run("apply", "-f", "-", stdin=SERVICE)


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        (
            with_spec(engine={"dtype": "int4"}),
            'spec.engine.dtype: Unsupported value: "int4": supported values: "auto"',
        ),
        (with_spec(modle={}), 'strict decoding error: unknown field "spec.modle"'),
        (
            with_spec(model={"uri": "s3://bucket/model"}),
            'spec.model.uri: Invalid value: "s3://bucket/model": must start with package://',
        ),
        (with_spec(model={}), "spec.model.uri: Required value"),
        (with_spec(replicas="two"), "spec.replicas in body must be of type integer"),
        (
            with_spec(engine={"gpuMemoryUtilization": 2}),
            "spec.engine.gpuMemoryUtilization in body should be less than or equal to 1",
        ),
        (
            with_spec(resources={"limits": {"memory": "2Gb"}}),
            "spec.resources.limits.memory in body should match",
        ),
    ],
)
def test_a_wrong_service_is_refused_with_the_field(
    kubectl: Kubectl, manifest: str, text: str
) -> None:
    assert text in kubectl.fail("apply", "-f", "-", stdin=manifest)
    assert text in kubectl.fail("apply", "--server-side", "-f", "-", stdin=manifest)
    assert kubectl.run("get", "oisvc") == ""


def test_an_unknown_field_is_a_warning_when_validation_only_warns(kubectl: Kubectl) -> None:
    done = kubectl.try_run("apply", "--validate=warn", "-f", "-", stdin=with_spec(modle={}))
    assert done.returncode == 0
    assert 'Warning: unknown field "spec.modle"' in done.stderr
    assert "modle" not in kubectl.json("get", "oisvc", "chat")["spec"]


def test_columns_scale_and_status(kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", "-", stdin=SERVICE)
    kubectl.run("scale", "oisvc/chat", "--replicas=3")
    kubectl.run(
        "patch",
        "oisvc",
        "chat",
        "--subresource=status",
        "--type=merge",
        "-p",
        '{"status": {"url": "http://chat", "readyOfDesired": "1/3", "conditions": [{"type": '
        '"Ready", "status": "False", "reason": "Starting", "message": "", '
        '"lastTransitionTime": "2026-01-01T00:00:00Z"}]}}',
    )
    header, row = kubectl.run("get", "oisvc").splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "REPLICAS", "URL", "AGE"]
    assert row.split()[:5] == ["chat", "False", "Starting", "1/3", "http://chat"]
    found = kubectl.json("get", "oisvc", "chat")
    assert found["spec"]["replicas"] == 3
    assert found["metadata"]["generation"] == 2, "a status is no new generation"
    kubectl.run("wait", "oisvc/chat", "--for=condition=Ready=False", "--timeout=5s")
    refusal = kubectl.fail("scale", "oisvc/chat", "--replicas=2000")
    assert "should be less than or equal to 1000" in refusal


def test_a_strategic_patch_is_refused_and_a_merge_patch_works(kubectl: Kubectl) -> None:
    kubectl.run("apply", "-f", "-", stdin=SERVICE)
    patch = '{"spec": {"replicas": 2}}'
    assert "not supported" in kubectl.fail(
        "patch", "oisvc", "chat", "--type=strategic", "-p", patch
    )
    kubectl.run("patch", "oisvc", "chat", "--type=merge", "-p", patch)
    assert kubectl.json("get", "oisvc", "chat")["spec"]["replicas"] == 2


def test_explain_knows_our_fields(kubectl: Kubectl) -> None:
    text = kubectl.run("explain", "oisvc.spec.engine")
    assert "maxNumSeqs\t<integer>" in text
    assert "Most sequences in one step." in text


def test_a_definition_comes_and_goes_with_its_objects(kubectl: Kubectl) -> None:
    group = f"g{uuid.uuid4().hex[:8]}.example.com"
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {"size": {"type": "integer"}},
                        }
                    },
                }
            ],
        },
    }
    kubectl.run("apply", "-f", "-", stdin=yaml.safe_dump(definition))
    kubectl.run("wait", f"crd/widgets.{group}", "--for=condition=Established", "--timeout=5s")
    widget = {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "w"}, "size": 1}
    kubectl.run("apply", "-f", "-", stdin=yaml.safe_dump(widget))
    kubectl.run("delete", "crd", f"widgets.{group}", "--timeout=10s")
    assert "the server doesn't have a resource type" in kubectl.fail("get", f"widgets.{group}")


def test_a_definition_without_types_or_with_a_broken_rule_is_refused(kubectl: Kubectl) -> None:
    definition = yaml.safe_load(
        """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Thing, plural: things}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        x-kubernetes-validations: [{rule: "self.size >"}]
        properties: {size: {description: no type}}
"""
    )
    refusal = kubectl.fail("apply", "-f", "-", stdin=yaml.safe_dump(definition))
    assert "properties[size].type: Required value" in refusal
    assert "x-kubernetes-validations[0].rule: Invalid value: compilation failed" in refusal
