"""The documentation says what the code does: tables, names, reasons, links."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from octavo_bench.options import parse_options as parse_bench_options
from octavo_engine.serving import protocol
from octavo_local.up import parse_options
from octavo_operator.api.spec import parse_service
from octavo_operator.api.status import ConditionType
from octavo_operator.core.checks import find_refusal
from octavo_wire import metrics
from octavo_wire.failures import Reason
from octavo_wire.names import KIND
from octavo_wire.settings import EngineSettings, flag_name

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.glob("*.md"))
OPERATOR_CORE = REPOSITORY / "operator" / "octavo_operator" / "core"
# CamelCase words of Kubernetes in the operator's core that are no reasons of ours.
NOT_REASONS = {
    "InferenceService",
    "ClusterIP",
    "PodScheduled",
    "ReplicaFailure",
    "NoSchedule",
    "IfNotPresent",
    "RuntimeDefault",
    "FallbackToLogsOnError",
    "NewReplicaSetAvailable",
    "NotReady",
    # Reasons of the kubelet that are read, and told as ImagePullFailed.
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
}


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def test_the_tables_are_those_of_the_code(generate: ModuleType) -> None:
    assert generate.main(["--check"]) == 0, "run python docs/generate.py"


def test_a_stale_table_is_found_and_an_unknown_one_refused(generate: ModuleType) -> None:
    stale = page("metrics").replace("vllm:num_preemptions_total", "vllm:num_evictions_total")
    assert generate.render(stale) == page("metrics") != stale
    with pytest.raises(ValueError, match="no table 'weather'"):
        generate.render("<!-- generated: weather -->\n<!-- end -->")


def test_every_series_is_documented() -> None:
    text = page("metrics")
    for name in (*metrics.GAUGES, *metrics.COUNTERS, *metrics.HISTOGRAMS):
        assert f"| `{name}` |" in text, name


def test_every_setting_is_explained_with_what_it_trades() -> None:
    table = page("engine").partition("## Each setting")[2]
    for setting in fields(EngineSettings):
        if setting.name != "model":
            assert f"`{flag_name(setting.name)}`" in table, setting.name


def test_every_option_of_the_benchmarks_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("serve", "compare", "offline"):
        with pytest.raises(SystemExit):
            parse_bench_options([command, "--help"])
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}
        for option in options:
            assert f"`{option.replace('--no-', '--')}" in page("benchmarks"), option


def operator_reasons() -> set[str]:
    """What the operator's core gives as reasons, and every CamelCase word of two humps or more."""
    words: set[str] = set()
    for path in OPERATOR_CORE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words |= set(re.findall(r"^[A-Z]\w*[a-z][A-Z]\w*$", node.value))
            if isinstance(node, ast.Call):
                given = [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
                if isinstance(node.func, ast.Name) and node.func.id in ("_ready", "_progressing"):
                    given += node.args[1:2]
                words |= {str(value.value) for value in given if isinstance(value, ast.Constant)}
    return words - NOT_REASONS


def test_every_reason_of_a_condition_is_documented() -> None:
    text = page("inferenceservice")
    reasons = operator_reasons()
    assert {"Serving", "ServingPreviousRevision", "Unschedulable", "NameTaken"} <= reasons
    for reason in sorted(reasons | set(Reason)):
        assert f"`{reason}`" in text, reason


def test_no_reason_is_documented_that_nobody_gives() -> None:
    tables = page("inferenceservice").partition("## Conditions")[2]
    cells = [line.split("|")[1:3] for line in tables.splitlines() if line.startswith("|")]
    documented = set(re.findall(r"`([A-Z]\w+)`", " ".join(map(" ".join, cells))))
    known = "".join(path.read_text() for path in OPERATOR_CORE.rglob("*.py"))
    for reason in documented - set(Reason):
        assert f'"{reason}"' in known, reason


def test_every_condition_is_documented() -> None:
    for condition in ConditionType:
        assert f"**{condition}**" in page("inferenceservice")


def test_every_field_of_a_request_is_documented() -> None:
    text = page("openai-api")
    for kind in (protocol.ChatRequest, protocol.CompletionRequest, protocol.StreamOptions):
        for field in kind.model_fields:
            if field != "include_obfuscation":  # false is its only value
                assert re.search(rf"`(stream_options\.)?{field}\b", text), field


def test_every_refused_field_is_documented_as_such() -> None:
    refused = page("openai-api").partition("## Refused")[2].partition("## Errors")[0]
    for field in protocol._UNSUPPORTED:
        assert f"`{field}`" in refused, field


def test_the_index_lists_every_page() -> None:
    for path in PAGES:
        if path.stem != "index":
            assert f"({path.name})" in page("index"), path.name


@pytest.mark.parametrize("path", [*PAGES, REPOSITORY / "README.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_make_targets_exist(path: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in re.findall(r"(?:`|\$ )make ([a-z-]+)", path.read_text()):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_that_are_named_exist(path: Path) -> None:
    pattern = r"\b((?:charts|crds|docker|docs|engine|examples|operator|tests)/[\w./*-]+\.\w+)"
    for name in re.findall(pattern, path.read_text()):
        assert list(REPOSITORY.glob(name)), name


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, InferenceService) of every manifest in docs/, the README and examples/."""
    texts = {str(path): path.read_text() for path in (REPOSITORY / "examples").glob("*.yaml")}
    for path in [*PAGES, REPOSITORY / "README.md"]:
        blocks = re.findall(r"```yaml\n(.*?)```", path.read_text(), re.DOTALL)
        texts |= {f"{path.name}-{number}": block for number, block in enumerate(blocks)}
    for where, text in texts.items():
        for document in yaml.safe_load_all(text):
            if document and document["kind"] == KIND:
                yield where, document


def test_every_manifest_that_is_shown_is_one_that_the_operator_plans() -> None:
    shown = dict(manifests())
    assert {"inferenceservice-0", "quickstart-0", "README-0"} <= {
        where.replace(".md", "") for where in shown
    }
    for where, manifest in shown.items():
        metadata = manifest["metadata"] | {"namespace": "default", "uid": "1"}
        service = parse_service(manifest | {"metadata": metadata})
        assert find_refusal(service) is None, where


def test_every_option_of_local_mode_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--help"])
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert "--node" in options
    for option in options:
        assert f"`{option}" in page("local-mode"), option
