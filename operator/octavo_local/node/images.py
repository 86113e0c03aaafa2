"""What a node that has no container runtime makes of an image name.

Local mode runs processes of this machine. It "has" Octavo's own images, whose entry point is the
`octavo` command of this very installation, and those that its user admits by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_wire import names


class ImageNotAvailable(Exception):
    """The image cannot be run here; the message says what can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """The images of the node: Octavo's of `version`, and `admitted` ones by exact name."""

    version: str
    python: str
    admitted: frozenset[str] = frozenset()

    def own(self) -> tuple[str, ...]:
        return (
            f"{names.OPERATOR_IMAGE}:{self.version}",
            names.engine_image(self.version, gpu=True),
            names.engine_image(self.version, gpu=False),
        )

    def has(self, image: str) -> bool:
        return image in self.admitted or self._is_own(image)

    def _is_own(self, image: str) -> bool:
        return image.rpartition("/")[2] in self.own()

    def require(self, image: str) -> None:
        """Raise ImageNotAvailable, unless the node has the image."""
        if not self.has(image):
            raise ImageNotAvailable(
                f"local mode has no container runtime: it runs processes of Octavo's own images "
                f"({', '.join(self.own())}, with any registry) and cannot pull {image!r}; to run "
                f"the pod's own command on this machine, start it with: "
                f"octavo up --image {image}"
            )

    def command_of(
        self, container: Mapping[str, Any], command: Sequence[str], args: Sequence[str]
    ) -> list[str]:
        """The words to execute; `command` and `args` are the container's, expanded.

        Without a command the image's entry point runs, which an admitted image does not have:
        raises ImageNotAvailable then.
        """
        own_entry_point = [self.python, "-m", "octavo_cli.main"]
        if not command:
            if not self._is_own(container["image"]):
                raise ImageNotAvailable(
                    f"image {container['image']!r} is admitted by name only, so its entry point is "
                    f"not known: give container {container['name']!r} a command"
                )
            return [*own_entry_point, *args]
        if command[0] == "octavo":
            return [*own_entry_point, *command[1:], *args]
        return [*command, *args]
