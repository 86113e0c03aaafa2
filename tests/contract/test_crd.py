"""The CRD admits what the operator reads, no more and no less."""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

from octavo_operator.api.quantities import SPEC_QUANTITY
from octavo_operator.api.spec import (
    MAX_NAME_LENGTH,
    MAX_RESOURCES,
    MODEL_SCHEMES,
    InferenceServiceSpec,
    SpecError,
    field_name,
    parse_service,
)
from octavo_operator.api.status import Condition, ConditionStatus, Status
from octavo_wire import names
from octavo_wire.settings import DTYPES
from support.inference import MODEL, make_object

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "charts" / "octavo"
CRD = yaml.safe_load((REPOSITORY / "crds" / "inferenceservices.yaml").read_text(encoding="utf-8"))
(VERSION,) = CRD["spec"]["versions"]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]
STATUS = SCHEMA["properties"]["status"]


def schema_at(path: str) -> dict[str, Any]:
    found = SPEC
    for key in path.split("."):
        found = found["properties"][key]
    return dict(found)


def test_names_are_those_of_the_wire() -> None:
    assert CRD["spec"]["group"] == names.API_GROUP
    assert CRD["spec"]["names"]["kind"] == names.KIND
    assert CRD["spec"]["names"]["plural"] == names.PLURAL
    assert VERSION["name"] == names.API_VERSION


def check_same_fields(schema: dict[str, Any], kind: type[Any], path: str) -> int:
    """Compare an object's properties with a dataclass, all the way down; returns how many."""
    hints = get_type_hints(kind)
    known = {field_name(field.name): field for field in fields(kind)}
    assert set(schema["properties"]) == set(known), path
    count = len(known)
    for name, field in known.items():
        hint = hints[field.name]
        candidates = [hint, *get_args(hint)]
        nested = next((entry for entry in candidates if is_dataclass(entry)), None)
        if nested is not None:
            assert isinstance(nested, type)
            count += check_same_fields(schema["properties"][name], nested, f"{path}.{name}")
    return count


def test_every_field_of_the_spec_is_read_and_no_other_admitted() -> None:
    assert check_same_fields(SPEC, InferenceServiceSpec, "spec") == 15


def test_every_field_of_the_status_is_admitted() -> None:
    """One that is not would be pruned, and written again at every look."""
    status = Status(
        observed_generation=1,
        replicas=1,
        ready_replicas=1,
        updated_ready_replicas=1,
        desired_replicas=1,
        selector="a=b",
        model_name="m",
        url="u",
        conditions=[],
    )
    assert set(status.to_api([])) == set(STATUS["properties"])
    item = STATUS["properties"]["conditions"]["items"]
    written = {field_name(field.name) for field in fields(Condition)}
    assert set(item["properties"]) == written | {"lastTransitionTime", "observedGeneration"}
    assert item["properties"]["status"]["enum"] == [str(status) for status in ConditionStatus]


def test_columns_and_scale_point_at_what_is_written() -> None:
    paths = [column["jsonPath"] for column in VERSION["additionalPrinterColumns"]]
    paths += [
        VERSION["subresources"]["scale"][key] for key in ("statusReplicasPath", "labelSelectorPath")
    ]
    for path in paths:
        head, _, rest = path.removeprefix(".").partition(".")
        if head == "status":
            assert rest.partition("[")[0] in STATUS["properties"], path
    assert VERSION["subresources"]["scale"]["specReplicasPath"] == ".spec.replicas"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("replicas", "replicas"),
        ("engine.maxNumSeqs", "maxNumSeqs"),
        ("engine.gpuMemoryUtilization", "gpuMemoryUtilization"),
    ],
)
def test_bounds_are_the_same_on_both_sides(path: str, field: str) -> None:
    schema = schema_at(path)
    for bound, beyond in ((schema["minimum"], -1), (schema["maximum"], 1)):
        for value, good in ((bound, True), (bound + beyond, False)):
            spec = {"engine": {field: value}} if path.startswith("engine") else {field: value}
            if good:
                parse_service(make_object(**spec))
            else:
                with pytest.raises(SpecError):
                    parse_service(make_object(**spec))


def test_choices_and_limits_are_the_same_on_both_sides() -> None:
    assert schema_at("engine.dtype")["enum"] == list(DTYPES)
    assert schema_at("resources.limits")["maxProperties"] == MAX_RESOURCES
    (rule,) = schema_at("model.uri")["x-kubernetes-validations"]
    assert all(scheme in rule["rule"] for scheme in MODEL_SCHEMES)
    (rule,) = SCHEMA["x-kubernetes-validations"]
    assert f"<= {MAX_NAME_LENGTH}" in rule["rule"]


def test_quantities_are_the_same_in_crd_operator_and_chart() -> None:
    for name in ("requests", "limits"):
        assert schema_at(f"resources.{name}")["additionalProperties"]["pattern"] == SPEC_QUANTITY
    values = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    quantity = values["definitions"]["quantities"]["additionalProperties"]
    assert (quantity["pattern"], quantity["type"]) == (SPEC_QUANTITY, ["string", "integer"])


def test_defaults_change_nothing() -> None:
    """What the schema fills in is what the operator assumes where nothing stands."""
    defaults = {
        "engine": {"parallelism": {"tensor": 1, "pipeline": 1}},
        "resources": {},
        "replicas": schema_at("replicas")["default"],
    }
    bare, filled = make_object(), make_object(model={"uri": MODEL}, **defaults)
    assert parse_service(bare) == parse_service(filled)
