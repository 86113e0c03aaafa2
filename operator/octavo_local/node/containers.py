"""One container of a pod: started, probed, restarted with back-off, stopped with grace."""

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from octavo_local.node.backoff import Backoff
from octavo_local.node.environment import ConfigError
from octavo_local.node.guardian import Guardian
from octavo_local.node.images import ImageNotAvailable
from octavo_local.node.logs import LogFile
from octavo_local.node.probes import Surroundings, Verdict, timing_of, try_handler
from octavo_local.node.process import ContainerProcess, Exit
from octavo_local.node.sessions import SharedTable, memory_bytes_of
from octavo_local.node.status import ContainerRecord, Running, Terminated, Waiting
from octavo_local.quantities import parse_quantity

_MAX_MESSAGE_BYTES: Final = 4096  # what a kubelet keeps of a termination message
_FALLBACK_LINES: Final = 80
_FALLBACK_BYTES: Final = 2048
_CONFIG_RETRY_S: Final = 1.0
_MEMORY_PERIOD_S: Final = 1.0
_KEPT_LOGS: Final = 2  # this run's and the one before, for `kubectl logs --previous`


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that a container's process is started with."""

    words: list[str]
    env: dict[str, str]
    cwd: Path
    termination_log: Path


class Owner(Protocol):
    """What a container asks of its pod."""

    @property
    def pod_ip(self) -> str: ...

    @property
    def grace_s(self) -> float: ...

    def prepare(self, container: Mapping[str, Any]) -> Launch:
        """Raises ConfigError, ImageNotAvailable or OSError."""

    def changed(self) -> None:
        """A record is new: publish it."""

    def say(
        self, container: Mapping[str, Any], reason: str, message: str, *, is_warning: bool = False
    ) -> None: ...


class Container:
    """Runs until its restart policy has had enough, or until `stop`."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        owner: Owner,
        *,
        restart_policy: str,
        directory: Path,
        guardian: Guardian,
        processes: SharedTable,
        backoff: Backoff,
    ) -> None:
        self.spec = spec
        self.record = ContainerRecord(name=spec["name"], image=spec["image"])
        self.log: LogFile | None = None
        self.previous_log: LogFile | None = None
        self._owner = owner
        self._restart_policy = restart_policy
        self._directory = directory
        self._guardian = guardian
        self._processes = processes
        self._backoff = backoff
        self._process: ContainerProcess | None = None
        self._around: Surroundings | None = None
        self._stopping = asyncio.Event()
        self._out_of_memory = False

    async def run(self) -> None:
        """Start, and start again as the restart policy says."""
        num_failures = 0
        while not self._stopping.is_set():
            launch = await self._prepared()
            if launch is None:
                return
            try:
                end = await self._run_once(launch)
            except OSError as error:
                await self._wait_to_create("CreateContainerError", error)
                continue
            wanted = self._restart_policy == "Always" or (
                self._restart_policy == "OnFailure" and end.exit_code != 0
            )
            if not wanted or self._stopping.is_set():
                return
            num_failures = self._backoff.count(num_failures, end.finished_at - end.started_at)
            await self._wait_to_restart(end, num_failures)

    async def stop(self, grace_s: float) -> None:
        """End the process: preStop hook, SIGTERM, and SIGKILL after the grace period."""
        self._stopping.set()
        process, around = self._process, self._around
        if process is None or around is None:
            return
        self._owner.say(self.spec, "Killing", f"Stopping container {self.record.name}")
        deadline = asyncio.get_running_loop().time() + grace_s
        if hook := (self.spec.get("lifecycle") or {}).get("preStop"):
            problem = await try_handler(hook, around, grace_s)
            if problem:
                self._owner.say(self.spec, "FailedPreStopHook", problem, is_warning=True)
        await self._end(process, max(0.0, deadline - asyncio.get_running_loop().time()))

    def kill(self) -> None:
        """End the process at once."""
        self._stopping.set()
        if self._process is not None:
            self._process.kill()

    async def _end(self, process: ContainerProcess, grace_s: float) -> None:
        process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await process.ended.wait()
        except TimeoutError:
            process.kill()

    async def _prepared(self) -> Launch | None:
        """What to start, once the image and the configuration allow it; None when stopped."""
        while not self._stopping.is_set():
            try:
                return self._owner.prepare(self.spec)
            except ImageNotAvailable as error:
                if self._set_waiting("ErrImagePull", str(error)):
                    self._owner.say(self.spec, "Failed", str(error), is_warning=True)
                    await self._stopped_within(_CONFIG_RETRY_S)
                self._set_waiting("ImagePullBackOff", str(error))
                self._owner.say(
                    self.spec, "BackOff", f'Back-off pulling image "{self.record.image}"'
                )
                await self._stopping.wait()  # the node's images do not change while it runs
            except (ConfigError, ValueError) as error:
                await self._wait_to_create("CreateContainerConfigError", error)
            except OSError as error:
                await self._wait_to_create("CreateContainerError", error)
        return None

    async def _wait_to_create(self, reason: str, error: Exception) -> None:
        """Say once why it cannot be started; the caller tries again."""
        if self._set_waiting(reason, str(error)):
            self._owner.say(self.spec, "Failed", f"Error: {error}", is_warning=True)
        await self._stopped_within(_CONFIG_RETRY_S)

    def _set_waiting(self, reason: str, message: str) -> bool:
        state = Waiting(reason=reason, message=message)
        if self.record.state == state:
            return False
        self._set(state=state, is_ready=False, is_started=False)
        return True

    async def _stopped_within(self, wait_s: float) -> bool:
        try:
            async with asyncio.timeout(wait_s):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    async def _wait_to_restart(self, end: Terminated, num_failures: int) -> None:
        """The first restart is immediate, as in a cluster; then the back-off begins."""
        wait_s = self._backoff.wait_s(num_failures - 1)
        if wait_s:
            self._set(
                state=Waiting(
                    reason="CrashLoopBackOff",
                    message=f"back-off {wait_s:g}s restarting failed container={self.record.name}",
                ),
                last_state=end,
            )
            self._owner.say(
                self.spec,
                "BackOff",
                f"Back-off restarting failed container {self.record.name}",
                is_warning=True,
            )
            if await self._stopped_within(wait_s):
                self._set(state=end)
                return
        self._set(
            state=Waiting(reason="ContainerCreating"),
            last_state=end,
            restart_count=self.record.restart_count + 1,
        )

    async def _run_once(self, launch: Launch) -> Terminated:
        say = self._owner.say
        launch.termination_log.unlink(missing_ok=True)
        launch.termination_log.touch(mode=0o600)
        self._rotate_log()
        assert self.log is not None
        if self.record.restart_count == 0:
            message = f'Container image "{self.record.image}" already present on machine'
            say(self.spec, "Pulled", message)
        say(self.spec, "Created", f"Container created: {self.record.name}")
        started_at = time.time()
        self._out_of_memory = False
        process = await ContainerProcess.start(
            launch.words, env=launch.env, cwd=launch.cwd, log=self.log, guardian=self._guardian
        )
        self._process = process
        self._around = Surroundings(
            container=self.spec, pod_ip=self._owner.pod_ip, env=launch.env, cwd=launch.cwd
        )
        waits = bool(self.spec.get("startupProbe"))
        self._set(
            state=Running(started_at=started_at),
            is_started=not waits,
            is_ready=not waits and not self.spec.get("readinessProbe"),
            container_id=f"process://{process.pid}",
        )
        say(self.spec, "Started", f"Container started: {self.record.name}")
        tending = [
            asyncio.create_task(self._probe_all(process, self._around)),
            asyncio.create_task(self._watch_memory(process)),
        ]
        if self._stopping.is_set():
            process.terminate()  # stop() came while the process was being started
        try:
            end = await process.wait()
        finally:
            self._process = None
            for task in tending:
                task.cancel()
            await asyncio.gather(*tending, return_exceptions=True)
        terminated = self._terminated(end, started_at, launch.termination_log)
        self._set(state=terminated, is_ready=False, is_started=False)
        return terminated

    def _rotate_log(self) -> None:
        run = self.record.restart_count
        fresh = LogFile(self._directory / f"{run}.log")
        if self.log is None or self.log.path != fresh.path:  # equal after a start that failed
            self.previous_log = self.log
        self.log = fresh
        (self._directory / f"{run - _KEPT_LOGS}.log").unlink(missing_ok=True)

    def _terminated(self, end: Exit, started_at: float, message_file: Path) -> Terminated:
        message = ""
        if message_file.exists():
            message = message_file.read_bytes()[:_MAX_MESSAGE_BYTES].decode(errors="replace")
        fallback = self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if not message and fallback and end.code and self.log is not None:
            message = self.log.tail(_FALLBACK_LINES, _FALLBACK_BYTES)
        reason = "OOMKilled" if self._out_of_memory else "Completed" if end.code == 0 else "Error"
        return Terminated(
            exit_code=end.code,
            reason=reason,
            started_at=started_at,
            finished_at=time.time(),
            signal=end.signal,
            message=message,
            container_id=self.record.container_id,
        )

    async def _probe_all(self, process: ContainerProcess, around: Surroundings) -> None:
        if hook := (self.spec.get("lifecycle") or {}).get("postStart"):
            problem = await try_handler(hook, around, timeout_s=60)
            if problem:
                self._owner.say(self.spec, "FailedPostStartHook", problem, is_warning=True)
                await self._fail(process, "failed its postStart hook")
                return
        if self.spec.get("startupProbe"):
            if not await self._start_up(process, around):
                return
            is_ready = not self.spec.get("readinessProbe")
            self._set(is_started=True, is_ready=is_ready)
        await asyncio.gather(
            self._probe(
                "readinessProbe", around, lambda passing: self._set(is_ready=passing), False
            ),
            self._live(process, around),
        )

    async def _start_up(self, process: ContainerProcess, around: Surroundings) -> bool:
        started = False

        def note(passing: bool) -> None:
            nonlocal started
            started = passing

        await self._probe("startupProbe", around, note, initial=False, until_first=True)
        if not started:
            await self._fail(process, "failed startup probe")
        return started

    async def _live(self, process: ContainerProcess, around: Surroundings) -> None:
        if not self.spec.get("livenessProbe"):
            return
        await self._probe("livenessProbe", around, lambda _: None, initial=True, until_failure=True)
        await self._fail(process, "failed liveness probe")

    async def _probe(
        self,
        kind: str,
        around: Surroundings,
        report: Callable[[bool], None],
        initial: bool,
        *,
        until_first: bool = False,
        until_failure: bool = False,
    ) -> None:
        """Try for ever; `report` hears every change of the verdict.

        `until_first` ends with the first success, or with as many failures as the probe allows;
        `until_failure` ends with the latter alone.
        """
        probe = self.spec.get(kind)
        if not probe:
            return
        timing, verdict = timing_of(probe), Verdict(is_passing=initial)
        await asyncio.sleep(timing.initial_delay_s)
        while True:
            problem = await try_handler(probe, around, timing.timeout_s)
            if problem:
                name = kind.removesuffix("Probe").capitalize()
                self._owner.say(
                    self.spec, "Unhealthy", f"{name} probe failed: {problem}", is_warning=True
                )
            was = verdict
            verdict = verdict.after(problem is None, timing)
            if verdict.is_passing != was.is_passing:
                report(verdict.is_passing)
            has_failed = verdict.failures >= timing.failure_threshold
            if until_first and (verdict.is_passing or has_failed):
                return
            if until_failure and has_failed:
                return
            await asyncio.sleep(timing.period_s)

    async def _fail(self, process: ContainerProcess, why: str) -> None:
        name = self.record.name
        self._owner.say(self.spec, "Killing", f"Container {name} {why}, will be restarted")
        await self._end(process, self._owner.grace_s)

    async def _watch_memory(self, process: ContainerProcess) -> None:
        limit = ((self.spec.get("resources") or {}).get("limits") or {}).get("memory")
        if limit is None:
            return
        while True:
            await asyncio.sleep(_MEMORY_PERIOD_S)
            members = (await self._processes.get()).members(process.family)
            if memory_bytes_of(members) > parse_quantity(limit):
                self._out_of_memory = True
                process.kill()
                return

    def _set(self, **changes: Any) -> None:
        updated = replace(self.record, **changes)
        if updated != self.record:
            self.record = updated
            self._owner.changed()


def remove_directory(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
