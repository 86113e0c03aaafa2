"""Request bodies: JSON, YAML and, where real clients insist, protobuf."""

import json
from typing import Any

import yaml
from aiohttp import web

from .errors import bad_request, unsupported_media_type
from .protobuf import decode_object

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"

_JSON_TYPES = ("application/json", JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, "")
_YAML_TYPES = ("application/yaml", APPLY_PATCH)


async def read_body(request: web.Request) -> Any:
    """The decoded body, None if there is none; raises 400 and 415."""
    raw = await request.read()
    if not raw:
        return None
    media_type = request.content_type if "Content-Type" in request.headers else ""
    if media_type == PROTOBUF:
        return decode_object(raw)
    try:
        if media_type in _YAML_TYPES:
            return _load_yaml(raw)
        if media_type in _JSON_TYPES:
            return json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise bad_request(f"the body cannot be read as {media_type or 'JSON'}: {error}") from error
    raise unsupported_media_type(
        f"the body of the request was in an unknown format ({media_type}) - accepted media types "
        f"include: application/json, application/yaml, {PROTOBUF}"
    )


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases, by which a few lines can stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not accepted")
        return super().compose_node(parent, index)


def _load_yaml(raw: bytes) -> Any:
    """Clients write JSON into most YAML bodies, which is read far faster as such."""
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except ValueError:
        return yaml.load(raw, _PlainLoader)  # noqa: S506 - a SafeLoader


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
