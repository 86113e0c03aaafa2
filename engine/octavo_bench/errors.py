"""What keeps a benchmark from starting.

Exception
└── BenchError        a mistake that the user can correct, or a server that does not answer
"""


class BenchError(Exception):
    """The benchmark cannot run; the message says why and what to do next."""
