"""Volumes become directories, and mount paths lead to them."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from octavo_local.node.environment import ConfigError
from octavo_local.node.volumes import (
    VolumeError,
    decode_data,
    mounts_of,
    rewrite_paths,
    set_up_volumes,
)

MOUNTS = {"/models": Path("/v/models"), "/models/cache": Path("/v/cache"), "/tmp": Path("/v/tmp")}


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("/models", "/v/models"),
        ("/models/a.gguf", "/v/models/a.gguf"),
        ("/models/cache/x", "/v/cache/x"),
        ("--model=/models/a", "--model=/v/models/a"),
        ("file:///models/a", "file:///v/models/a"),
        ("a:/models:/tmp", "a:/v/models:/v/tmp"),
        ("/models2/a", "/models2/a"),
        ("/opt/models/a", "/opt/models/a"),
        ("/models-old", "/models-old"),
        ("https://host/models", "https://host/models"),
        ("cat /tmp/x > /models/y", "cat /v/tmp/x > /v/models/y"),
    ],
)
def test_a_mount_path_is_replaced_where_it_is_a_path(text: str, rewritten: str) -> None:
    assert rewrite_paths(text, MOUNTS) == rewritten


def test_a_file_of_this_machine_below_a_mount_path_stays_itself(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    volume = tmp_path / "volume"
    volume.mkdir()
    mounts = {str(tmp_path): volume}
    uri = f"file://{tmp_path}/model.gguf"
    assert rewrite_paths(uri, mounts) == uri
    assert rewrite_paths(f"{tmp_path}/other", mounts) == f"{volume}/other"
    (volume / "model.gguf").touch()
    assert rewrite_paths(uri, mounts) == f"file://{volume}/model.gguf"


def set_up(root: Path, *volumes: dict[str, Any], token: str | None = None) -> dict[str, Path]:
    def lookup(kind: str, name: str) -> Mapping[str, bytes] | None:
        return {"a": b"1", "b": b"2"} if name == "there" else None

    metadata = {"name": "p", "namespace": "default", "uid": "u1", "labels": {"x": "y"}}
    pod = {"metadata": metadata, "spec": {"nodeName": "n", "volumes": list(volumes)}}
    node: dict[str, Any] = {"status": {"allocatable": {}}}
    return set_up_volumes(pod, root, pod_ip="127.77.0.1", node=node, lookup=lookup, token=token)


def test_every_kind_of_volume_has_its_content(tmp_path: Path) -> None:
    paths = set_up(
        tmp_path / "v",
        {"name": "scratch", "emptyDir": {}},
        {"name": "config", "configMap": {"name": "there"}},
        {"name": "secret", "secret": {"secretName": "there", "items": [{"key": "a", "path": "k"}]}},
        {
            "name": "all",
            "projected": {
                "sources": [
                    {"configMap": {"name": "there"}},
                    {"serviceAccountToken": {"path": "token"}},
                    {
                        "downwardAPI": {
                            "items": [
                                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
                            ]
                        }
                    },
                ]
            },
        },
        {"name": "host", "hostPath": {"path": str(tmp_path), "type": "Directory"}},
        token="t0ken",
    )
    assert paths["scratch"].is_dir()
    assert (paths["config"] / "b").read_text() == "2"
    assert [item.name for item in paths["secret"].iterdir()] == ["k"]
    assert (paths["secret"] / "k").stat().st_mode & 0o777 == 0o600
    assert {item.name for item in paths["all"].iterdir()} == {"a", "b", "token", "labels"}
    assert (paths["all"] / "labels").read_text() == 'x="y"'
    assert paths["host"] == tmp_path


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"persistentVolumeClaim": {"claimName": "c"}}, "persistentVolumeClaim"),
        ({"configMap": {"name": "none"}}, 'configmap "default/none" not found'),
        ({"hostPath": {"path": "/does/not/exist"}}, "/does/not/exist"),
        (
            {"secret": {"secretName": "there", "items": [{"key": "z", "path": "z"}]}},
            "no key z",
        ),
        (
            {"configMap": {"name": "there", "items": [{"key": "a", "path": "../../x"}]}},
            "leads out of its volume",
        ),
    ],
)
def test_a_volume_that_cannot_be_is_an_error(
    tmp_path: Path, volume: dict[str, Any], message: str
) -> None:
    with pytest.raises(VolumeError, match=message):
        set_up(tmp_path, {"name": "v", **volume})


def test_the_machine_has_its_own_shared_memory(tmp_path: Path) -> None:
    mounts = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "data", "mountPath": "/data/", "subPath": "part"},
    ]
    found = mounts_of({"volumeMounts": mounts}, {"shm": tmp_path, "data": tmp_path})
    assert found == {"/data": tmp_path / "part"}


def test_a_sub_path_stays_in_its_volume(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    mount = {"name": "data", "mountPath": "/data", "subPath": "../../escaped"}
    with pytest.raises(ConfigError, match="leads out of its volume"):
        mounts_of({"volumeMounts": [mount]}, {"data": tmp_path / "v"})
    assert not (tmp_path.parent / "escaped").exists()


def test_data_of_secrets_is_decoded() -> None:
    secret = {"data": {"k": base64.b64encode(b"\x00v").decode()}}
    assert decode_data("Secret", secret) == {"k": b"\x00v"}
    assert decode_data("ConfigMap", {"data": {"k": "v"}}) == {"k": b"v"}
