"""Write the tables of the documentation from the code that they describe.

    python docs/generate.py            rewrite the tables
    python docs/generate.py --check    exit 1, naming the page, when one differs

A table stands between `<!-- generated: NAME -->` and `<!-- end -->`; the words around it are ours.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import yaml

from octavo_engine.serving.metrics import EngineMetrics
from octavo_wire.settings import EngineSettings, env_name, flag_name

DOCS = Path(__file__).parent
CRD = DOCS.parent / "crds" / "inferenceservices.yaml"
Rows = Iterator[Sequence[str]]


def settings_table() -> str:
    return _table(("flag", "environment", "default", "meaning"), _settings_rows())


def metrics_table() -> str:
    return _table(("series", "type", "labels", "meaning"), _metrics_rows())


def spec_table() -> str:
    return _table(("field", "type", "default", "meaning"), _field_rows(_crd_schema("spec"), "spec"))


TABLES: Mapping[str, Callable[[], str]] = {
    "engine flags": settings_table,
    "metrics": metrics_table,
    "spec": spec_table,
}


def render(page: str) -> str:
    """The page with every table made anew. Raises ValueError for a table that nobody knows."""

    def replace(match: re.Match[str]) -> str:
        make = TABLES.get(match["name"])
        if make is None:
            raise ValueError(f"there is no table {match['name']!r}")
        return f"{match['begin']}\n{make()}{match['end']}"

    pattern = r"(?P<begin><!-- generated: (?P<name>[a-z ]+) -->)\n.*?(?P<end><!-- end -->)"
    return re.sub(pattern, replace, page, flags=re.DOTALL)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, report differences")
    check = parser.parse_args(argv).check
    status = 0
    for path in sorted(DOCS.glob("*.md")):
        before = path.read_text(encoding="utf-8")
        after = render(before)
        if after == before:
            continue
        if check:
            print(f"docs/{path.name} differs: run python docs/generate.py", file=sys.stderr)  # noqa: T201 - a command
            status = 1
        else:
            path.write_text(after, encoding="utf-8")
            print(f"wrote docs/{path.name}")  # noqa: T201 - a command
    return status


def _settings_rows() -> Rows:
    for setting in fields(EngineSettings):
        text = str(setting.metadata["help"])
        if setting.name == "model":
            yield "`MODEL`", "", "required", text
            continue
        flag = flag_name(setting.name)
        negated = f", `--no-{flag[2:]}`" if isinstance(setting.default, bool) else ""
        yield f"`{flag}`{negated}", f"`{env_name(setting.name)}`", _default(setting), text


def _default(setting: Field[Any]) -> str:
    assert setting.default is not MISSING
    if setting.default is None:
        return "`auto`" if setting.name == "max_model_len" else ""
    if isinstance(setting.default, bool):
        return "on" if setting.default else "off"
    return f"`{setting.default}`"


def _metrics_rows() -> Rows:
    exported = EngineMetrics(model_name="", block_size=1)
    for family in exported.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = sorted({label for sample in family.samples for label in sample.labels})
        own = [label for label in labels if label not in ("model_name", "engine", "le")]
        shown = ", ".join(f"`{label}`" for label in own)
        yield f"`{name}`", family.type, shown, family.documentation


def _crd_schema(part: str) -> Mapping[str, Any]:
    crd = yaml.safe_load(CRD.read_text(encoding="utf-8"))
    (version,) = crd["spec"]["versions"]
    schema: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]["properties"][part]
    return schema


def _field_rows(schema: Mapping[str, Any], path: str) -> Rows:
    for name, node in schema["properties"].items():
        here = f"{path}.{name}"
        if "properties" in node:
            yield f"`{here}`", "", "", _words(node)
            yield from _field_rows(node, here)
            continue
        required = name in schema.get("required", ())
        default = "required" if required else f"`{node['default']}`" if "default" in node else ""
        yield f"`{here}`", _type(node), default, _words(node)


def _type(node: Mapping[str, Any]) -> str:
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if "additionalProperties" in node:
        return "map of quantities"
    text = str(node["type"])
    if "minimum" in node and "maximum" in node:
        return f"{text}, {node['minimum']} to {node['maximum']}"
    return f"{text}, {node['minimum']} or more" if "minimum" in node else text


def _words(node: Mapping[str, Any]) -> str:
    return str(node.get("description", ""))


def _table(head: Sequence[str], rows: Rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines
    )


if __name__ == "__main__":
    sys.exit(main())
