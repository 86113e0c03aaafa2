import pytest

from octavo_operator.__main__ import main
from octavo_operator.settings import SettingError, make_parser, parse_settings


def test_defaults_need_nothing() -> None:
    settings = parse_settings([], {}, "1.2")
    assert settings.namespaces == ()
    assert settings.engine_version == "1.2"
    assert (settings.health_host, settings.health_port) == ("0.0.0.0", 8080)
    assert settings.identity != parse_settings([], {}, "1.2").identity


def test_flags_outrank_the_environment() -> None:
    env = {"OCTAVO_NAMESPACES": "a, b", "POD_ID": "pod-1", "OCTAVO_HOST": "127.0.0.2"}
    settings = parse_settings(["--namespaces=c", "--engine-version=9"], env, "1.2")
    assert settings.namespaces == ("c",)
    assert (settings.identity, settings.health_host) == ("pod-1", "127.0.0.2")
    assert settings.engine_version == "9"


@pytest.mark.parametrize(
    ("argv", "env", "named"),
    [
        (["--health-port=x"], {}, "--health-port"),
        (["--lease-duration-s=0"], {}, "--lease-duration-s"),
        ([], {"OCTAVO_LOG_LEVEL": "loud"}, "OCTAVO_LOG_LEVEL"),
    ],
)
def test_a_wrong_value_is_named_by_where_it_stands(
    argv: list[str], env: dict[str, str], named: str
) -> None:
    with pytest.raises(SettingError, match=named):
        parse_settings(argv, env, "1")


def test_wrong_values_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--health-port=x"]) == 2
    assert "--health-port" in capsys.readouterr().err


def test_help_says_how_to_install_the_kind() -> None:
    assert "kubectl apply -f crds/inferenceservices.yaml" in make_parser().format_help()


def test_without_a_cluster_it_names_the_file_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/kubeconfig")
    monkeypatch.setenv("POD_ID", "pod")
    assert main([]) == 1
    said = capsys.readouterr().err
    assert "there is no file /nowhere/kubeconfig" in said
    assert "Set KUBECONFIG" in said
