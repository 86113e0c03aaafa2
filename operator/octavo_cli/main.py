"""The console script. It knows the names of the commands and where they live, nothing else."""

import importlib
import importlib.metadata
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    target: str  # module:function; the function takes the arguments and returns the exit status
    extra: str  # the extra of the distribution that brings what it imports
    summary: str


COMMANDS = {
    "up": Command(
        "octavo_local.__main__:main",
        "local",
        "a one-node Kubernetes on this machine; apply manifests to it",
    ),
    "serve": Command(
        "octavo_engine.__main__:serve",
        "engine",
        "serve a model over the OpenAI API, no Kubernetes needed",
    ),
    "generate": Command(
        "octavo_engine.__main__:generate", "engine", "answer one prompt in this terminal"
    ),
    "bench": Command(
        "octavo_bench.__main__:main",
        "bench",
        "measure any server of the OpenAI API, two in turns, or this engine",
    ),
    "operator": Command(
        "octavo_operator.__main__:main", "operator", "run the operator against the current cluster"
    ),
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: octavo COMMAND [ARGUMENTS]",
            "",
            "Serve large language models on Kubernetes, or on this machine.",
            "",
            *lines,
            "",
            "`octavo COMMAND --help` explains a command; `octavo --version` prints the version.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status. 2 means that the command line is wrong."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())  # noqa: T201
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"octavo {importlib.metadata.version('octavo')}")  # noqa: T201
        return 0
    name, rest = arguments[0], arguments[1:]
    command = COMMANDS.get(name)
    if command is None:
        print(f"octavo: there is no command {name!r}\n\n{usage()}", file=sys.stderr)  # noqa: T201
        return 2
    module_name, _, function_name = command.target.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("octavo"):
            raise
        print(  # noqa: T201
            f"octavo {name} needs the Python package {error.name!r}, which is not installed.\n"
            f"Install it with: pip install 'octavo[{command.extra}]'",
            file=sys.stderr,
        )
        return 2
    return int(function(rest) or 0)


if __name__ == "__main__":
    sys.exit(main())
