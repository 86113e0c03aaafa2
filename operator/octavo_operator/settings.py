"""The operator's settings: one dataclass makes the flags, the environment and the help text."""

import argparse
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from octavo_wire.names import ENV_HOST, OPERATOR_HEALTH_PORT

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


class SettingError(ValueError):
    """A flag or a variable has a value that the operator cannot work with."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _port(text: str) -> int:
    number = int(text) if text.strip().isdigit() else -1
    if not 0 <= number <= 65535:
        raise SettingError(f"{text!r} is no port: 0 to 65535 (0 takes a free one)")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if number <= 0:
        raise SettingError(f"{text!r} is no number of seconds above 0")
    return number


def _level(text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise SettingError(f"{text!r} is not one of {', '.join(LOG_LEVELS)}")
    return text.lower()


def _setting(
    default: Any, parse: Callable[[str], Any], metavar: str, text: str, *, env: str
) -> Any:
    metadata = {"parse": parse, "metavar": metavar, "help": text, "env": env}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Everything that shapes one operator process. Parsed once, never mutated."""

    namespaces: tuple[str, ...] = _setting(
        (),
        _names,
        "NAMES",
        "namespaces to serve, separated by commas; default: all of them",
        env="OCTAVO_NAMESPACES",
    )
    image_registry: str = _setting(
        "",
        str,
        "PREFIX",
        "registry (and path) that the engine images are pulled from; default: the node's own",
        env="OCTAVO_IMAGE_REGISTRY",
    )
    engine_version: str = _setting(
        "",
        str,
        "VERSION",
        "version of the engine images; default: the operator's own",
        env="OCTAVO_ENGINE_VERSION",
    )
    lease_name: str = _setting(
        "octavo-operator",
        str,
        "NAME",
        "name of the Lease that says which operator acts",
        env="OCTAVO_LEASE_NAME",
    )
    lease_namespace: str = _setting(
        "",
        str,
        "NAMESPACE",
        "namespace of that Lease; default: the pod's own, else `default`",
        env="OCTAVO_LEASE_NAMESPACE",
    )
    lease_duration_s: float = _setting(
        15.0,
        _seconds,
        "SECONDS",
        "how long an operator that stopped renewing the Lease still counts as its holder",
        env="OCTAVO_LEASE_DURATION_S",
    )
    identity: str = _setting(
        "",
        str,
        "NAME",
        "name under which the Lease is held; default: the pod's name, else one made up",
        env="POD_ID",
    )
    health_host: str = _setting(
        "0.0.0.0",  # noqa: S104 - the kubelet probes the pod's address
        str,
        "ADDRESS",
        "address of the health endpoint",
        env=ENV_HOST,
    )
    health_port: int = _setting(
        OPERATOR_HEALTH_PORT,
        _port,
        "PORT",
        "port of the health endpoint",
        env="OCTAVO_HEALTH_PORT",
    )
    log_level: str = _setting(
        "info", _level, "LEVEL", f"one of {', '.join(LOG_LEVELS)}", env="OCTAVO_LOG_LEVEL"
    )


DESCRIPTION: Final = """\
Watch InferenceServices and make what they describe: Deployments of the engine, Services, status.

It acts on the cluster that KUBECONFIG (or ~/.kube/config) names; inside a pod, on its own cluster.
The kind must be installed first:  kubectl apply -f crds/inferenceservices.yaml
Of several operators one acts, the holder of the Lease; another takes over when it falls silent.
"""


def make_parser(prog: str = "octavo operator") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for setting in fields(OperatorSettings):
        text = str(setting.metadata["help"])
        if setting.default not in ((), ""):
            text += f" (default: {setting.default})"
        parser.add_argument(
            "--" + setting.name.replace("_", "-"),
            metavar=setting.metadata["metavar"],
            help=f"{text} [{setting.metadata['env']}]",
        )
    return parser


def parse_settings(argv: Sequence[str], env: Mapping[str, str], version: str) -> OperatorSettings:
    """Settings from flags, then the environment, then defaults; `version` is the operator's own.

    Raises SettingError naming the flag or variable; argparse exits on unknown flags and --help.
    """
    given = vars(make_parser().parse_args(argv))
    chosen: dict[str, Any] = {}
    for setting in fields(OperatorSettings):
        source, raw = "--" + setting.name.replace("_", "-"), given.get(setting.name)
        if raw is None and env.get(setting.metadata["env"]):
            source, raw = setting.metadata["env"], env[setting.metadata["env"]]
        if raw is None:
            continue
        try:
            chosen[setting.name] = setting.metadata["parse"](raw)
        except SettingError as error:
            raise SettingError(f"{source}: {error}") from None
    chosen["engine_version"] = chosen.get("engine_version") or version
    chosen["lease_namespace"] = chosen.get("lease_namespace") or _own_namespace()
    chosen["identity"] = chosen.get("identity") or _made_up_identity()
    return OperatorSettings(**chosen)


def _own_namespace() -> str:
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def _made_up_identity() -> str:
    # Not the host's name alone: two operators on one machine must not both think they hold it.
    return f"{socket.gethostname()}-{uuid4().hex[:8]}"
