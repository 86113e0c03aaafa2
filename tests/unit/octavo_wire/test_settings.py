"""Flags, environment and defaults are one thing, and wrong values say which and why."""

from dataclasses import asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_wire.settings import (
    EngineSettings,
    SettingError,
    env_name,
    make_parser,
    parse_bytes,
    parse_settings,
    render_args,
)


def test_defaults_are_those_users_know() -> None:
    settings = parse_settings(["model.gguf"], {})
    assert settings.gpu_memory_utilization == 0.92
    assert settings.max_num_seqs == 256
    assert settings.block_size == 16
    assert settings.max_model_len is None
    assert settings.prefix_caching is True


def test_a_flag_wins_over_the_environment_which_wins_over_the_default() -> None:
    env = {"OCTAVO_PORT": "9000", "OCTAVO_HOST": "0.0.0.0"}
    settings = parse_settings(["m", "--port", "9001"], env)
    assert (settings.host, settings.port) == ("0.0.0.0", 9001)


def test_an_empty_variable_is_an_unset_one() -> None:
    assert parse_settings(["m"], {"OCTAVO_PORT": ""}).port == 8000


@pytest.mark.parametrize(
    ("argv", "env", "says"),
    [
        ([], {}, "MODEL"),
        (["m", "--port", "70000"], {}, "--port: '70000'"),
        (["m", "--max-num-seqs", "0"], {}, "--max-num-seqs: '0'"),
        (["m", "--gpu-memory-utilization", "1.5"], {}, "--gpu-memory-utilization: '1.5'"),
        (["m", "--gpu-memory-utilization", "nan"], {}, "--gpu-memory-utilization: 'nan'"),
        (["m", "--dtype", "float8"], {}, "auto, float32, bfloat16, float16"),
        (["m", "--kv-cache-memory", "lots"], {}, "--kv-cache-memory: 'lots'"),
        (["m"], {"OCTAVO_PREFIX_CACHING": "maybe"}, "OCTAVO_PREFIX_CACHING: 'maybe'"),
        (["m", "--no-such-flag"], {}, "--no-such-flag"),
        (["m", "--max-queued-requests", "-1"], {}, "--max-queued-requests: '-1'"),
        (["m", "--drain-seconds", "inf"], {}, "--drain-seconds: 'inf'"),
        (["m", "--drain-seconds", "nan"], {}, "--drain-seconds: 'nan'"),
        (["m", "--priority-wait-seconds", "inf"], {}, "--priority-wait-seconds: 'inf'"),
        (["m", "--request-timeout-seconds", "0"], {}, "--request-timeout-seconds: '0'"),
        (["m", "--max-tokens-policy", "ignore"], {}, "reject, clamp"),
        (["m", "--drain-seconds", "3"], {}, "--drain-accept-seconds 5 is more"),
        (["m", "--max-num-seqs", "64", "--max-num-batched-tokens", "32"], {}, "raise the first"),
    ],
)
def test_a_wrong_value_names_its_source(argv: list[str], env: dict[str, str], says: str) -> None:
    with pytest.raises(SettingError, match=r".+") as caught:
        parse_settings(argv, env)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 2**20),
        ("512Mi", 2**29),
        ("2G", 2 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("7 kb", 7000),
    ],
)
def test_sizes_are_read_with_their_units(text: str, size: int) -> None:
    assert parse_bytes(text) == size


rendered = st.fixed_dictionaries(
    {"model": st.just("package://m/f.gguf")},
    optional={
        "port": st.integers(0, 65535),
        "served_model_name": st.from_regex(r"[a-z0-9][a-z0-9/.:-]{0,20}", fullmatch=True),
        "dtype": st.sampled_from(["auto", "bfloat16"]),
        "max_model_len": st.integers(1, 10**6),
        "max_num_seqs": st.integers(1, 2048),
        "gpu_memory_utilization": st.floats(0.01, 1.0),
        "kv_cache_memory": st.integers(1, 10**12),
        "prefix_caching": st.booleans(),
    },
)


@given(rendered)
def test_rendered_arguments_are_read_back_to_the_same_values(values: dict[str, object]) -> None:
    settings = asdict(parse_settings(render_args(values), {}))
    assert {name: settings[name] for name in values} == values


def test_every_setting_has_a_flag_with_help_and_a_variable() -> None:
    shown = make_parser().format_help()
    for setting in fields(EngineSettings):
        assert setting.metadata["help"]
        if setting.name != "model":
            assert f"--{setting.name.replace('_', '-')}" in shown
            assert env_name(setting.name) in shown


def test_a_hidden_setting_is_read_and_not_shown() -> None:
    parser = make_parser("octavo generate", hidden=("port",))
    assert "--port" not in parser.format_help()
    assert vars(parser.parse_args(["m", "--port", "1"]))["port"] == "1"
