"""How long a container waits before it is started again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A wait that doubles with every failure and is forgotten after a healthy run.

    A cluster waits 10 s to 300 s and forgets after 600 s; a laptop's user would not.
    """

    base_s: float = 1.0
    cap_s: float = 60.0
    healthy_s: float = 60.0

    def wait_s(self, num_failures: int) -> float:
        """Seconds before the start that follows `num_failures` ends in a row (0: none)."""
        if num_failures <= 0:
            return 0.0
        return min(self.cap_s, self.base_s * 2.0 ** min(num_failures - 1, 30))

    def count(self, num_failures: int, ran_s: float) -> int:
        """The failures in a row, after another end of a container that ran for `ran_s`."""
        return 1 if ran_s >= self.healthy_s else num_failures + 1
