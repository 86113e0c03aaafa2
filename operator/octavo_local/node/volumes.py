"""Volumes as real directories, and paths of a container rewritten to them.

A container's process sees the machine's file system, so a volume cannot appear at its mount path.
Instead the mount path is replaced by the volume's directory wherever it stands as a path in the
container's command, arguments and environment. What a program has compiled in, or reads from a
file, keeps the mount path: that does not work here. `readOnly` is not enforced, and ConfigMaps and
Secrets are copied when the pod starts and not updated later.
"""

import base64
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from octavo_local.node.environment import HOST_IP, ConfigError, resolve_field, resolve_resource
from octavo_local.objects import namespace_of

# kind, name -> key -> bytes; None when there is no such object
BytesLookup = Callable[[str, str], Mapping[str, bytes] | None]
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the kernel's own, for medium: Memory


class VolumeError(Exception):
    """A volume cannot be set up (FailedMount); the message says which and why."""


def decode_data(kind: str, item: Mapping[str, Any]) -> dict[str, bytes]:
    """The entries of a ConfigMap or Secret as bytes."""
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
    plain = {key: str(value).encode() for key, value in (item.get("data") or {}).items()}
    binary = item.get("binaryData") or {}
    return plain | {key: base64.b64decode(value) for key, value in binary.items()}


def set_up_volumes(
    pod: Mapping[str, Any],
    root: Path,
    *,
    pod_ip: str,
    node: Mapping[str, Any],
    lookup: BytesLookup,
    token: str | None,
) -> dict[str, Path]:
    """Make the pod's volumes under `root`; returns the directory (or file) of each.

    `token`: what a projected service account token holds, None for pods that have none.
    Raises VolumeError.
    """
    paths = {}
    for volume in pod["spec"].get("volumes") or ():
        name = volume["name"]
        kinds = [key for key in volume if key != "name"]
        kind = kinds[0] if kinds else "emptyDir"
        source = volume.get(kind) or {}
        if kind == "hostPath":
            paths[name] = _host_path(name, source)
            continue
        directory = root / name
        if kind == "emptyDir":
            paths[name] = _empty_directory(pod, name, source, directory)
            continue
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        sources: Sequence[Mapping[str, Any]]
        if kind == "projected":
            sources = source.get("sources") or ()
        elif kind in ("configMap", "secret", "downwardAPI"):
            named = {**source, "name": source.get("secretName") or source.get("name")}
            sources = [{kind: named}]
        else:
            raise VolumeError(
                f'volume "{name}" is a {kind}, which local mode does not have: use emptyDir, '
                "hostPath, configMap, secret, downwardAPI or projected"
            )
        for part in sources:
            for path, content in _project(
                part, pod, pod_ip=pod_ip, node=node, lookup=lookup, token=token
            ).items():
                _write(directory, path, content)
        paths[name] = directory
    return paths


def remove_volumes(pod: Mapping[str, Any], root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    shutil.rmtree(_memory_root(pod), ignore_errors=True)


def mounts_of(container: Mapping[str, Any], volumes: Mapping[str, Path]) -> dict[str, Path]:
    """Mount path -> real path; /dev/shm is left out, since the process has the machine's own."""
    mounts = {}
    for mount in container.get("volumeMounts") or ():
        if mount["name"] not in volumes:
            raise ConfigError(f'volumeMount names volume "{mount["name"]}", which the pod lacks')
        if mount["mountPath"].rstrip("/") == str(_SHARED_MEMORY):
            continue
        if mount.get("subPathExpr"):
            raise ConfigError("subPathExpr is not supported in local mode: use subPath")
        real = volumes[mount["name"]]
        if mount.get("subPath"):
            real = real / mount["subPath"]
            if not real.resolve().is_relative_to(volumes[mount["name"]].resolve()):
                raise ConfigError(f"subPath {mount['subPath']!r} leads out of its volume")
            if not real.exists():
                real.mkdir(parents=True)
        mounts[mount["mountPath"].rstrip("/")] = real
    return mounts


def rewrite_paths(text: str, mounts: Mapping[str, Path]) -> str:
    """Replace every mount path that stands as a path of its own or begins one.

    But not in the path of a file that this machine has and the volume has not: a pod sees the
    machine's files, so a model below /tmp is found there, though pods mount a volume at /tmp.
    """
    if not mounts:
        return text

    def replace(match: re.Match[str]) -> str:
        below = match[2] or ""
        volume = str(mounts[match[1]])
        if below and Path(match[0]).is_file() and not Path(volume + below).exists():
            return match[0]
        return volume + below

    # The longest first, so that a mount inside another mount wins.
    paths = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
    return re.sub(
        rf"(?:(?<=file://)|(?<![\w.~/-]))({paths})(?![\w.-])(/[^\s:;,'\"]*)?",
        replace,
        text,
    )


def _host_path(name: str, source: Mapping[str, Any]) -> Path:
    path, kind = Path(source["path"]), source.get("type") or ""
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch()
    fits = {"Directory": path.is_dir, "File": path.is_file}.get(kind, path.exists)
    if not fits():
        raise VolumeError(f'volume "{name}": hostPath {path} is not there as {kind or "a path"}')
    return path


def _memory_root(pod: Mapping[str, Any]) -> Path:
    return _SHARED_MEMORY / f"octavo-{pod['metadata']['uid']}"


def _empty_directory(
    pod: Mapping[str, Any], name: str, source: Mapping[str, Any], directory: Path
) -> Path:
    if source.get("medium") == "Memory" and _SHARED_MEMORY.is_dir():
        directory = _memory_root(pod) / name
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return directory


def _project(
    source: Mapping[str, Any],
    pod: Mapping[str, Any],
    *,
    pod_ip: str,
    node: Mapping[str, Any],
    lookup: BytesLookup,
    token: str | None,
) -> dict[str, bytes]:
    if "serviceAccountToken" in source:
        if token is None:
            return {}
        return {source["serviceAccountToken"]["path"]: token.encode()}
    if "downwardAPI" in source:
        return {
            item["path"]: _downward(item, pod, pod_ip=pod_ip, node=node).encode()
            for item in source["downwardAPI"].get("items") or ()
        }
    field, kind = ("configMap", "ConfigMap") if "configMap" in source else ("secret", "Secret")
    if field not in source:
        raise VolumeError(f"a projected volume cannot hold {', '.join(source)} in local mode")
    reference = source[field]
    data = lookup(kind, reference["name"])
    if data is None:
        if reference.get("optional"):
            return {}
        raise VolumeError(f'{kind.lower()} "{namespace_of(pod)}/{reference["name"]}" not found')
    if "items" not in reference:
        return dict(data)
    missing = [item["key"] for item in reference["items"] if item["key"] not in data]
    if missing and not reference.get("optional"):
        raise VolumeError(f'{kind.lower()} "{reference["name"]}" has no key {", ".join(missing)}')
    return {item["path"]: data[item["key"]] for item in reference["items"] if item["key"] in data}


def _downward(
    item: Mapping[str, Any], pod: Mapping[str, Any], *, pod_ip: str, node: Mapping[str, Any]
) -> str:
    if "fieldRef" in item:
        return resolve_field(pod, item["fieldRef"]["fieldPath"], pod_ip=pod_ip, host_ip=HOST_IP)
    reference = item["resourceFieldRef"]
    named = reference.get("containerName")
    container = next((entry for entry in pod["spec"]["containers"] if entry["name"] == named), None)
    if container is None:
        raise VolumeError(f'resourceFieldRef names container "{named}", which the pod lacks')
    return resolve_resource(container, reference, node)


def _write(directory: Path, path: str, content: bytes) -> None:
    target = directory / path
    if not target.resolve().is_relative_to(directory.resolve()):
        raise VolumeError(f"path {path!r} leads out of its volume")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch(mode=0o600)
    target.write_bytes(content)
