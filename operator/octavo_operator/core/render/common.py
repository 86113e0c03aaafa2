"""What every child has in common: owner, labels, and a hash of what was asked for."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from octavo_operator.api.spec import InferenceService
from octavo_operator.core.names import ANNOTATION_MANIFEST, child_labels
from octavo_wire.names import API_GROUP, API_VERSION, KIND


def make_metadata(service: InferenceService, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": service.namespace,
        "labels": child_labels(service.name),
        "ownerReferences": [
            {
                "apiVersion": f"{API_GROUP}/{API_VERSION}",
                "kind": KIND,
                "name": service.name,
                "uid": service.uid,
                "controller": True,
                # True would need the right to set finalizers on the owner, where that is checked.
                "blockOwnerDeletion": False,
            }
        ],
    }


def hash_of(value: Mapping[str, Any]) -> str:
    """16 hex digits that change when anything in `value` does."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def with_manifest_hash(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest, bearing the hash of itself as an annotation."""
    annotations = {
        **manifest["metadata"].get("annotations", {}),
        ANNOTATION_MANIFEST: hash_of(manifest),
    }
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}
