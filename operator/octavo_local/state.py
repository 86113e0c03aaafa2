"""The directory of one running local cluster: private, locked, and gone when it ends."""

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

_LOCK = "lock"


class StateDirError(RuntimeError):
    """The directory cannot be used; the message says why and what to do."""


def default_state_dir() -> Path:
    """$XDG_RUNTIME_DIR/octavo/local where there is one, else ~/.octavo/local."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "octavo" / "local"
    return Path.home() / ".octavo" / "local"


@dataclass(slots=True)
class StateDir:
    """Held by one process at a time; the lock is the kernel's, so a killed one leaves none."""

    path: Path
    _lock: IO[str]

    @classmethod
    def claim(cls, path: Path) -> Self:
        """Make the directory (mode 0700), lock it and clear what a killed run left in it."""
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StateDirError(
                f"cannot make the state directory {path}: {error.strerror}; "
                "name another with --state-dir"
            ) from error
        if path.stat().st_uid != os.getuid():
            raise StateDirError(
                f"{path} belongs to another user; name another directory with --state-dir"
            )
        path.chmod(0o700)
        lock = (path / _LOCK).open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise StateDirError(
                f"a local cluster runs in {path} already (process {holder}).\n"
                f"Use it:    export KUBECONFIG={path / 'kubeconfig'}\n"
                f"Stop it:   kill {holder}\n"
                "Or start a second one beside it with --state-dir DIR"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        claimed = cls(path, lock)
        claimed._clear()
        return claimed

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def pods(self) -> Path:
        return self.path / "pods"

    @property
    def log(self) -> Path:
        """What the cluster itself logs; it stays, for a look afterwards."""
        return self.path / "cluster.log"

    def release(self) -> None:
        self._clear()
        self._lock.truncate(0)
        self._lock.close()

    def _clear(self) -> None:
        self.kubeconfig.unlink(missing_ok=True)
        shutil.rmtree(self.pods, ignore_errors=True)
