"""Every kind that is served now: the built-in ones and those that definitions have added."""

from collections.abc import Iterable
from dataclasses import dataclass

from .resources import BUILTIN_RESOURCES, EVENTS_K8S_IO, REVIEWS, Object, Resource
from .schemas import Schema, builtin_schema
from .storage import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePaths:
    """JSONPaths by which `/scale` reads and writes; `selector` is None if there is none."""

    spec_replicas: str
    status_replicas: str
    selector: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A resource with what the server needs to know about its objects."""

    resource: Resource
    schema: Schema
    columns: tuple[Object, ...] = ()  # additionalPrinterColumns of a custom resource
    scale: ScalePaths | None = None

    @property
    def has_status(self) -> bool:
        return "status" in self.resource.subresources


_BUILTIN_SCALE = ScalePaths(
    spec_replicas=".spec.replicas", status_replicas=".status.replicas", selector=None
)


class Kinds:
    """Finds kinds by path and by table."""

    def __init__(self) -> None:
        self._builtin = {
            _address(resource): Kind(
                resource=resource,
                schema=builtin_schema(resource),
                scale=_BUILTIN_SCALE if "scale" in resource.subresources else None,
            )
            for resource in BUILTIN_RESOURCES
        }
        self._custom: dict[Table, tuple[Kind, ...]] = {}
        # Questions are not stored, and the second view of events shares the first one's table.
        unstored = (*REVIEWS, EVENTS_K8S_IO)
        self._by_table = {
            kind.resource.table: kind
            for kind in self._builtin.values()
            if kind.resource not in unstored
        }

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        builtin = self._builtin.get((group, version, plural))
        if builtin is not None:
            return builtin
        versions = self._custom.get((group, plural), ())
        return next((kind for kind in versions if kind.resource.version == version), None)

    def of(self, resource: Resource) -> Kind:
        kind = self.find(resource.group, resource.version, resource.plural)
        assert kind is not None, f"{resource.qualified} is not served"
        return kind

    def stored_in(self, table: Table) -> Kind | None:
        """The kind that the objects of a table are, or were before their definition went."""
        return self._by_table.get(table)

    def served(self) -> Iterable[Kind]:
        yield from self._builtin.values()
        for versions in self._custom.values():
            yield from versions

    def install(self, versions: tuple[Kind, ...], *, stored: Kind) -> None:
        table = stored.resource.table
        self._custom[table] = versions
        self._by_table[table] = stored

    def uninstall(self, table: Table) -> None:
        """Stops serving; what the table held keeps its name, for those who still hear of it."""
        self._custom.pop(table, None)


def _address(resource: Resource) -> tuple[str, str, str]:
    return (resource.group, resource.version, resource.plural)
