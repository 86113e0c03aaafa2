"""What `make demo` runs: `python -m octavo_local.demo FILE` is `octavo up --demo -f FILE`."""

import sys
from collections.abc import Sequence

from octavo_local.up import parse_options, run


def main(argv: Sequence[str]) -> int:
    """Apply the manifests, wait until the model serves, stream one answer, end everything."""
    files = [word for path in argv if not path.startswith("-") for word in ("-f", path)]
    others = [word for word in argv if word.startswith("-")]
    return run(parse_options(["--demo", *files, *others], prog="python -m octavo_local.demo"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
