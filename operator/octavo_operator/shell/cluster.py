"""The API server, asked without blocking; objects are plain JSON."""

import json
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import aiohttp
from kubernetes.aio import client as kube_client
from kubernetes.aio import config as kube_config

from octavo_operator.settings import SERVICE_ACCOUNT
from octavo_operator.shell.permissions import RIGHTS, Right
from octavo_wire.names import API_GROUP, API_VERSION, FIELD_MANAGER, KIND, PLURAL

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S: Final = 20.0
# The server ends a watch first, so that a silent connection is told from a dead one.
WATCH_SERVER_TIMEOUT_S: Final = 290
WATCH_CLIENT_TIMEOUT_S: Final = 300.0


class Collection(NamedTuple):
    group: str
    version: str
    plural: str

    @property
    def prefix(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


_COLLECTIONS: Final = {
    KIND: Collection(API_GROUP, API_VERSION, PLURAL),
    "Deployment": Collection("apps", "v1", "deployments"),
    "Service": Collection("", "v1", "services"),
    "Pod": Collection("", "v1", "pods"),
    "Event": Collection("", "v1", "events"),
    "Lease": Collection("coordination.k8s.io", "v1", "leases"),
}
# Verbs of RBAC that a method of Cluster needs, where they are not its name.
_VERBS: Final = {"apply": ("create", "patch"), "patch_status": ("patch",), "replace": ("update",)}


def rights_for(operation: str, kind: str) -> set[Right]:
    """What RBAC must grant for a method of Cluster; asserts that the table of permissions does."""
    collection = _COLLECTIONS[kind]
    resource = collection.plural + ("/status" if operation == "patch_status" else "")
    rights = {(collection.group, resource, verb) for verb in _VERBS.get(operation, (operation,))}
    assert rights <= RIGHTS, f"not in the table of permissions: {rights - RIGHTS}"
    return rights


class ClusterError(Exception):
    """The API cannot be reached or used; `status` 0 where there was no answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    type: str  # ADDED, MODIFIED, DELETED, BOOKMARK, ERROR
    object: Mapping[str, Any]


class Cluster:
    """One connection pool; `async with Cluster.connect() as cluster`."""

    def __init__(self, configuration: kube_client.Configuration) -> None:
        self._api = kube_client.ApiClient(configuration)
        self.host = str(configuration.host)

    @classmethod
    async def connect(cls) -> Self:
        """The cluster of KUBECONFIG, of the pod this runs in, or of ~/.kube/config."""
        configuration = kube_client.Configuration()
        try:
            if uses_service_account():
                # The client's functions bear no types.
                kube_config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            else:
                _check_kubeconfig()
                await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                    client_configuration=configuration
                )
        except (kube_config.ConfigException, OSError) as error:
            raise ClusterError(
                f"No cluster to talk to: {error}. Set KUBECONFIG to a kubeconfig file."
            ) from error
        return cls(configuration)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]  # it bears no types

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """The object, or None where there is none."""
        rights_for("get", kind)
        try:
            return await self._request("GET", _path(kind, namespace, name))
        except ClusterError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self, kind: str, namespace: str | None, selector: str
    ) -> tuple[list[dict[str, Any]], str]:
        """Objects that `selector` picks (namespace None: all of them), and the list's version."""
        rights_for("list", kind)
        answer = await self._request(
            "GET", _path(kind, namespace), query=[("labelSelector", selector)]
        )
        api_version = str(answer.get("apiVersion", ""))
        # Items of a list come without their kind.
        items = [
            {"apiVersion": api_version, "kind": kind, **item} for item in answer.get("items") or []
        ]
        return items, str((answer.get("metadata") or {}).get("resourceVersion", ""))

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply under our field manager; what others changed of ours is taken back."""
        meta = manifest["metadata"]
        rights_for("apply", manifest["kind"])
        return await self._request(
            "PATCH",
            _path(manifest["kind"], meta["namespace"], meta["name"]),
            query=[("fieldManager", FIELD_MANAGER), ("force", "true")],
            body=manifest,
            content_type="application/apply-patch+yaml",
        )

    async def patch_status(
        self, kind: str, namespace: str, name: str, status: Mapping[str, Any]
    ) -> None:
        rights_for("patch_status", kind)
        await self._request(
            "PATCH",
            _path(kind, namespace, name) + "/status",
            query=[("fieldManager", FIELD_MANAGER)],
            body={"status": status},
            content_type="application/merge-patch+json",
        )

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        rights_for("create", manifest["kind"])
        return await self._request(
            "POST", _path(manifest["kind"], manifest["metadata"]["namespace"]), body=manifest
        )

    async def replace(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Write the whole object; a ClusterError of status 409 means that it has changed."""
        meta = manifest["metadata"]
        path = _path(manifest["kind"], meta["namespace"], meta["name"])
        rights_for("replace", manifest["kind"])
        return await self._request("PUT", path, body=manifest)

    async def delete(self, obj: Mapping[str, Any]) -> None:
        """Delete this very object: not another one that took its name since."""
        meta = obj["metadata"]
        rights_for("delete", obj["kind"])
        try:
            await self._request(
                "DELETE",
                _path(obj["kind"], meta["namespace"], meta["name"]),
                body={
                    "apiVersion": "v1",
                    "kind": "DeleteOptions",
                    "propagationPolicy": "Background",
                    "preconditions": {"uid": meta["uid"]},
                },
            )
        except ClusterError as error:
            if error.status not in (404, 409):
                raise

    async def knows_kind(self) -> bool:
        """Whether the InferenceService API is installed."""
        try:
            answer = await self._request("GET", _COLLECTIONS[KIND].prefix)
        except ClusterError as error:
            if error.status == 404:
                return False
            raise
        return any(entry.get("name") == PLURAL for entry in answer.get("resources") or [])

    async def watch(
        self, kind: str, namespace: str | None, selector: str, resource_version: str
    ) -> AsyncIterator[WatchEvent]:
        """Changes after `resource_version`, until the server ends the watch."""
        rights_for("watch", kind)
        response = await self._send(
            "GET",
            _path(kind, namespace),
            query=[
                ("watch", "true"),
                ("labelSelector", selector),
                ("resourceVersion", resource_version),
                ("allowWatchBookmarks", "true"),
                ("timeoutSeconds", str(WATCH_SERVER_TIMEOUT_S)),
            ],
            timeout_s=WATCH_CLIENT_TIMEOUT_S,
        )
        try:
            if response.status != 200:
                raise _error_of(response.status, await response.read())
            while line := await response.content.readline():
                event = _parse_object(line)
                yield WatchEvent(type=str(event.get("type")), object=_mapping(event.get("object")))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise ClusterError(f"watch of {kind} broke off: {error!r}") from error
        finally:
            response.close()

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        response = await self._send(method, path, query=query, body=body, content_type=content_type)
        try:
            data = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ClusterError(f"{method} {path}: the answer broke off: {error!r}") from error
        if not 200 <= response.status <= 299:
            raise _error_of(response.status, data)
        try:
            return _parse_object(data) if data else {}
        except ValueError as error:
            raise ClusterError(f"{method} {path}: the answer is no API object: {error}") from error

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> aiohttp.ClientResponse:
        logger.debug("request: %s %s", method, path)
        serialized = await self._api.param_serialize(
            method,
            path,
            query_params=list(query),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = await self._api.call_api(*serialized, _request_timeout=timeout_s)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterError(f"{method} {self.host}{path}: {error!r}") from error
        response: aiohttp.ClientResponse = answer.response
        return response


def uses_service_account() -> bool:
    """Whether to act as the pod's service account; a KUBECONFIG that is set outranks it."""
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and (SERVICE_ACCOUNT / "token").exists()
    return in_pod and not os.environ.get("KUBECONFIG")


def _check_kubeconfig() -> None:
    """Name the file that is missing: the client would miss a key in it instead."""
    files = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if not any(Path(name).exists() for name in files.split(os.pathsep)):
        raise FileNotFoundError(f"there is no file {files}")


def _path(kind: str, namespace: str | None, name: str | None = None) -> str:
    collection = _COLLECTIONS[kind]
    scope = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"{collection.prefix}{scope}/{collection.plural}" + (
        f"/{name}" if name is not None else ""
    )


def _parse_object(data: bytes) -> dict[str, Any]:
    """Raises ValueError: something between us and the API may answer in its stead."""
    return _mapping(json.loads(data))


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:100]!r} is no JSON object")
    return value


def _error_of(status: int, data: bytes) -> ClusterError:
    """The API's own words where it spoke in a Status object."""
    try:
        message = str(_parse_object(data)["message"])
    except (ValueError, KeyError):
        message = data[:500].decode(errors="replace") or f"HTTP status {status}"
    return ClusterError(message, status=status)
