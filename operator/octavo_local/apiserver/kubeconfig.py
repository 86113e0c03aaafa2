"""The kubeconfig that leads kubectl, helm and the operator to this server."""

import base64
import os
import tempfile
from pathlib import Path

import yaml

NAME = "octavo"


def render_kubeconfig(url: str, token: str, ca_pem: str, *, namespace: str = "default") -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": NAME,
                    "cluster": {
                        "server": url,
                        "certificate-authority-data": base64.b64encode(ca_pem.encode()).decode(),
                    },
                }
            ],
            "users": [{"name": NAME, "user": {"token": token}}],
            "contexts": [
                {
                    "name": NAME,
                    "context": {"cluster": NAME, "user": NAME, "namespace": namespace},
                }
            ],
            "current-context": NAME,
        },
        sort_keys=False,
    )


def write_kubeconfig(path: Path, text: str) -> None:
    """Replaces the file at once, readable by its owner only from its first byte on."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
