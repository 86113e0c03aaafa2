"""What this server offers, as clients ask for it before anything else."""

from .errors import no_such_path
from .kinds import Kind, Kinds
from .resources import Object
from .schemas import KUBERNETES_VERSION


def version_info() -> Object:
    major, minor, _ = KUBERNETES_VERSION.split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{KUBERNETES_VERSION}+octavo-local",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "python",
        "platform": "linux/amd64",
    }


def core_versions() -> Object:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list(kinds: Kinds) -> Object:
    names = sorted({kind.resource.group for kind in kinds.served()} - {""})
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(kinds, name) for name in names],
    }


def group(kinds: Kinds, name: str) -> Object:
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(kinds, name)}


def _group(kinds: Kinds, name: str) -> Object:
    versions = list(
        dict.fromkeys(
            kind.resource.version for kind in kinds.served() if kind.resource.group == name
        )
    )
    if not versions or not name:
        raise no_such_path()
    # Stable versions (v1, v2) before v1beta1 and v1alpha1; the newest first.
    versions.sort(key=lambda text: ("alpha" not in text, "beta" not in text, text), reverse=True)
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def resource_list(kinds: Kinds, group_name: str, version: str) -> Object:
    found = [
        kind
        for kind in kinds.served()
        if (kind.resource.group, kind.resource.version) == (group_name, version)
    ]
    if not found:
        raise no_such_path()
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": found[0].resource.api_version,
        "resources": [entry for kind in found for entry in _entries(kind)],
    }


def _entries(kind: Kind) -> list[Object]:
    resource = kind.resource
    main: Object = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        main["shortNames"] = list(resource.short_names)
    if resource.categories:
        main["categories"] = list(resource.categories)
    entries = [main]
    for name in sorted(resource.subresources):
        entry: Object = {
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": ["get"] if name == "log" else ["get", "patch", "update"],
        }
        if name == "scale":
            entry.update(kind="Scale", group="autoscaling", version="v1")
        if name not in ("exec", "attach", "portforward"):
            entries.append(entry)
    return entries
