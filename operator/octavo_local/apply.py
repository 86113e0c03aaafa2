"""Manifests from files to the API: server-side apply over HTTP, as kubectl would."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from octavo_local.objects import Object

_FIELD_MANAGER: Final = "octavo-up"
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


class ManifestError(Exception):
    """A manifest cannot be read or is refused; the message names it and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    source: str  # file and document, for messages
    body: Object

    @property
    def title(self) -> str:
        metadata = self.body["metadata"]
        return f"{self.body['kind']} {metadata.get('namespace', 'default')}/{metadata['name']}"


def load_manifests(paths: Iterable[Path]) -> list[Manifest]:
    """The documents of YAML files; a directory stands for its *.yaml, *.yml and *.json files.

    Raises ManifestError.
    """
    manifests = []
    for path in paths:
        if path.is_dir():
            inside = sorted(
                item for item in path.iterdir() if item.suffix in (".yaml", ".yml", ".json")
            )
            manifests += load_manifests(inside)
            continue
        try:
            documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ManifestError(f"{path}: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ManifestError(f"{path} is no YAML: {error}") from error
        for number, document in enumerate(documents, 1):
            if document is None:
                continue
            source = str(path) if len(documents) == 1 else f"{path}, document {number}"
            manifests += _checked(source, document)
    return manifests


def _checked(source: str, document: object) -> list[Manifest]:
    if not isinstance(document, dict):
        raise ManifestError(f"{source} is no Kubernetes object, but a {type(document).__name__}")
    if document.get("kind") == "List":
        return [found for item in document.get("items") or () for found in _checked(source, item)]
    for field in ("apiVersion", "kind"):
        if not isinstance(document.get(field), str):
            raise ManifestError(f"{source} has no {field}")
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        raise ManifestError(f"{source}: {document['kind']} has no metadata.name")
    return [Manifest(source=source, body=document)]


def _with_last_applied(body: Object) -> Object:
    """The object with the annotation by which `kubectl apply` and `diff` find nothing to change."""
    metadata = body["metadata"]
    annotations = dict(metadata.get("annotations") or {})
    applied = body | {"metadata": {"annotations": annotations, **metadata}}
    text = json.dumps(applied, separators=(",", ":"), sort_keys=True) + "\n"
    return body | {"metadata": metadata | {"annotations": annotations | {_LAST_APPLIED: text}}}


class Applier:
    """Applies manifests to one API server."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}
        self._kinds: dict[str, list[Mapping[str, Any]]] = {}

    async def apply(self, manifest: Manifest) -> Object:
        """Create or change the object; raises ManifestError with the API's own words."""
        path, body = await self._resolve(manifest)
        async with self._session.patch(
            f"{self._url}{path}",
            params={"fieldManager": _FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"},
            data=yaml.safe_dump(_with_last_applied(body)),
            headers=self._headers | {"Content-Type": "application/apply-patch+yaml"},
        ) as answer:
            said = await answer.json()
            if answer.status >= 400:
                raise ManifestError(f"{manifest.source}: {said.get('message', said)}")
            return dict(said)

    async def _resolve(self, manifest: Manifest) -> tuple[str, Object]:
        """The object's path, and the object with its namespace."""
        api_version, kind = manifest.body["apiVersion"], manifest.body["kind"]
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        for resource in await self._resources(root):
            if resource["kind"] == kind and "/" not in resource["name"]:
                metadata = manifest.body["metadata"]
                path = f"/{resource['name']}/{metadata['name']}"
                if not resource["namespaced"]:
                    return root + path, manifest.body
                namespace = metadata.get("namespace") or "default"
                body = manifest.body | {"metadata": {**metadata, "namespace": namespace}}
                return f"{root}/namespaces/{namespace}{path}", body
        raise ManifestError(
            f'{manifest.source}: no matches for kind "{kind}" in version "{api_version}"'
        )

    async def _resources(self, root: str) -> list[Mapping[str, Any]]:
        if root not in self._kinds:
            async with self._session.get(f"{self._url}{root}", headers=self._headers) as answer:
                if answer.status == 404:
                    return []
                self._kinds[root] = list((await answer.json())["resources"])
        return self._kinds[root]
