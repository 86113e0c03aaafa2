"""The entry point of `octavo up`."""

import sys
from collections.abc import Sequence

from octavo_local.up import parse_options, run


def main(argv: Sequence[str]) -> int:
    """Run `octavo up`; returns its exit status."""
    return run(parse_options(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
