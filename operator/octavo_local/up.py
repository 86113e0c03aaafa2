"""`octavo up`: start the local cluster, apply manifests, say how it goes, stay until Ctrl-C."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

from rich.console import Console

from octavo_local.apply import Manifest, ManifestError, load_manifests
from octavo_local.chat import ChatError, stream_chat
from octavo_local.local_cluster import ClusterOptions, LocalCluster, running_cluster
from octavo_local.node.addresses import NoAddressAvailable
from octavo_local.node.backoff import Backoff
from octavo_local.objects import Object
from octavo_local.progress import Progress, progress_of
from octavo_local.quantities import QuantityError, parse_quantity
from octavo_local.services import LocalUrl
from octavo_local.state import StateDir, StateDirError, default_state_dir
from octavo_wire import names

FIRST_PORT: Final = 8080
DEMO_PROMPT: Final = "Why is the sky blue? Answer in two short sentences."
# A demo gives up on a reason that does not pass, or when nothing is ready for so long.
_STUCK_S: Final = 10.0
_DEMO_DEADLINE_S: Final = 300.0
_LOOK_S: Final = 0.2

_DESCRIPTION: Final = """\
Run Kubernetes on this machine, with Octavo in it: an API server in memory, a node whose pods are
processes, the operator. For laptops, demos and tests; whatever is applied is gone when it ends.

  octavo up -f examples/smollm2.yaml            serve a model; a URL is printed when it is ready
  octavo up -f service.yaml --demo              the same, ask one question, end
  octavo up --node nvidia.com/gpu=2             try manifests for a node with two GPUs

In another terminal:  export KUBECONFIG=…  (the line is printed), then kubectl as usual.
Ctrl-C ends everything that it started; a second Ctrl-C does not wait for it.
"""
_EPILOG: Final = """\
Pods run as processes of this user, each on a loopback address of its own. They are not isolated:
images' security settings have no effect, and a volume's mount path is replaced in the container's
command, arguments and environment by the directory where the volume lies.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    files: tuple[Path, ...]
    cluster: ClusterOptions
    state_dir: Path
    demo: bool
    prompt: str
    verbose: bool


def parse_options(argv: Sequence[str], prog: str = "octavo up") -> UpOptions:
    """Options from the command line; argparse exits with 2 on a wrong one."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-f", "--filename", dest="files", metavar="FILE", type=Path, action="append", default=[],
        help="manifest (or folder of them) to apply; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--node", metavar="RESOURCE=AMOUNT", type=_resource, action="append", default=[],
        help="capacity of the node beyond this machine's CPUs and memory, as nvidia.com/gpu=2 or "
        "memory=8Gi; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--port", metavar="PORT", type=int, default=FIRST_PORT,
        help="first local port for Services; each takes the next free one (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--image", metavar="NAME", dest="images", action="append", default=[],
        help="let pods of this image run too, by their own command (nothing is pulled)",
    )  # fmt: skip
    parser.add_argument(
        "--state-dir", metavar="DIR", type=Path, default=None,
        help=f"where the kubeconfig and the pods' files lie (default: {default_state_dir()})",
    )  # fmt: skip
    parser.add_argument(
        "--demo", action="store_true", help="ask the first service one question, then end"
    )
    parser.add_argument("--prompt", default=DEMO_PROMPT, help="the question of --demo")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="log what the cluster does to stderr"
    )
    given = parser.parse_args(argv)
    if given.demo and not given.files:
        parser.error("--demo needs a manifest to apply: -f FILE")
    return UpOptions(
        files=tuple(given.files),
        cluster=ClusterOptions(
            resources=dict(given.node),
            images=frozenset(given.images),
            first_port=given.port,
            backoff=Backoff(),
        ),
        state_dir=given.state_dir or default_state_dir(),
        demo=given.demo,
        prompt=given.prompt,
        verbose=given.verbose,
    )


def _resource(text: str) -> tuple[str, Fraction]:
    name, _, amount = text.partition("=")
    try:
        if name and amount:
            return name, parse_quantity(amount)
    except QuantityError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    raise argparse.ArgumentTypeError(f"{text!r} is not RESOURCE=AMOUNT, as nvidia.com/gpu=2")


def run(options: UpOptions) -> int:
    """Run until told to stop; returns the exit status."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        manifests = load_manifests(options.files)
        state = StateDir.claim(options.state_dir)
    except (ManifestError, StateDirError) as error:
        sys.stderr.write(f"octavo up: {error}\n")
        return 1
    try:
        _configure_logging(state.log, verbose=options.verbose)
        return asyncio.run(_Session(options, manifests, state, console).run())
    except (ManifestError, NoAddressAvailable) as error:
        sys.stderr.write(f"octavo up: {error}\n")
        return 1
    finally:
        state.release()


def _configure_logging(path: Path, *, verbose: bool) -> None:
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[logging.StreamHandler() if verbose else logging.FileHandler(path, mode="w")],
        force=True,
    )


class _Session:
    """One `octavo up`, from the first line to the last."""

    def __init__(
        self, options: UpOptions, manifests: list[Manifest], state: StateDir, console: Console
    ) -> None:
        self._options = options
        self._manifests = manifests
        self._state = state
        self._console = console
        self._stop = asyncio.Event()
        self._started_at = 0.0

    async def run(self) -> int:
        self._started_at = asyncio.get_running_loop().time()
        async with running_cluster(self._state, self._options.cluster, self._announce) as local:
            with self._signals(local):
                await local.install_definitions()
                for manifest in self._manifests:
                    await local.apply(manifest)
                await local.install_operator()
                self._say(f"{self._elapsed():6.1f} s  Kubernetes API at {local.url}")
                for manifest in self._manifests:
                    self._say(f"{self._elapsed():6.1f} s  {manifest.title} applied")
                if self._options.demo:
                    status = await self._demo(local)
                else:
                    self._say("\n" + self._how_to_use() + "\n")
                    status = await self._stay(local)
            self._say("Stopping: ending every process …")
        return status

    def _announce(self, url: LocalUrl) -> None:
        logging.getLogger(__name__).info("%s/%s at %s", url.namespace, url.service, url.url)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def _elapsed(self) -> float:
        return asyncio.get_running_loop().time() - self._started_at

    @contextlib.contextmanager
    def _signals(self, local: LocalCluster) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def ask_to_stop() -> None:
            if self._stop.is_set():
                local.kubelet.kill_all()
                self._state.release()
                os._exit(130)
            self._stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ask_to_stop)
        # They stay in place: a second signal is to shorten the end as well.
        yield

    def _services(self) -> list[tuple[str, str]]:
        return [
            (
                manifest.body["metadata"].get("namespace") or "default",
                manifest.body["metadata"]["name"],
            )
            for manifest in self._manifests
            if manifest.body["kind"] == names.KIND
        ]

    def _how_to_use(self) -> str:
        return (
            f"  export KUBECONFIG={self._state.kubeconfig}\n  {own_command('kubectl')} get pods -A"
        )

    async def _stay(self, local: LocalCluster) -> int:
        """Report every change until a signal comes; 1 when the cluster itself fails."""
        shown: dict[tuple[str, str], str] = {}
        while not self._stop.is_set():
            if local.failed.done():
                sys.stderr.write(f"octavo up: {local.failed.result()}; see {self._state.log}\n")
                return 1
            for key in self._services():
                found = local.inference_service(*key)
                if found is None:
                    continue
                progress = progress_of(found, local.operator_pods())
                if shown.get(key) != progress.line(0):
                    shown[key] = progress.line(0)
                    self._say(progress.line(self._elapsed()))
                    if progress.is_ready:
                        self._say("\n" + self._invitation(local, key, found) + "\n")
            await self._pause()
        return 0

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await self._stop.wait()

    def _invitation(self, local: LocalCluster, key: tuple[str, str], found: Object | None) -> str:
        namespace, name = key
        url = local.url_of(namespace, name) or "(no local port)"
        in_namespace = "" if namespace == "default" else f" -n {namespace}"
        model = _model_name(found, name)
        return (
            f"  URL        {url}/v1\n"
            f"  curl       curl {url}/v1/chat/completions -H 'content-type: application/json' \\\n"
            f'               -d \'{{"model": "{model}", "messages": '
            f'[{{"role": "user", "content": "Hello"}}]}}\'\n'
            f"  kubectl    export KUBECONFIG={self._state.kubeconfig}\n"
            f"             {own_command('kubectl')} get oisvc{in_namespace}\n"
            f"             {own_command('kubectl')} logs -f deploy/{name}{in_namespace}"
        )

    async def _demo(self, local: LocalCluster) -> int:
        services = self._services()
        if not services:
            raise ManifestError(f"the demo needs a manifest of kind {names.KIND}")
        progress = await self._wait_ready(local, services[0])
        if progress is None:
            return 130
        if not progress.is_ready:
            sys.stderr.write(f"octavo up: {progress.name} is not ready: {progress.message}\n")
            if progress.next_action:
                sys.stderr.write(f"Next: {progress.next_action}\n")
            return 1
        return await self._ask(local, services[0])

    async def _wait_ready(self, local: LocalCluster, key: tuple[str, str]) -> Progress | None:
        """The last look: ready, stuck or too late; None when told to stop."""
        shown, stuck_since = "", 0.0
        with self._spinner() as spinner:
            while not self._stop.is_set():
                found = local.inference_service(*key)
                assert found is not None
                progress = progress_of(found, local.operator_pods())
                if progress.line(0) != shown:
                    shown, stuck_since = progress.line(0), self._elapsed()
                    self._say(progress.line(self._elapsed()))
                spinner(f"{self._elapsed():5.1f} s  {progress.phase}")
                stuck = not progress.is_passing and self._elapsed() - stuck_since > _STUCK_S
                if progress.is_ready or stuck or self._elapsed() > _DEMO_DEADLINE_S:
                    return progress
                await self._pause()
        return None

    @contextlib.contextmanager
    def _spinner(self) -> Iterator[Callable[[str], None]]:
        """A line that moves while the user waits; nothing where there is no terminal."""
        if not self._console.is_terminal:
            yield lambda text: None
            return
        with self._console.status("") as status:
            yield lambda text: status.update(text)

    async def _ask(self, local: LocalCluster, key: tuple[str, str]) -> int:
        found = local.inference_service(*key)
        url = local.url_of(*key)
        if url is None:
            sys.stderr.write(f"octavo up: Service {key[1]} has no local port\n")
            return 1
        self._say(f"\n> {self._options.prompt}\n")
        try:
            stats = await stream_chat(
                url,
                model=_model_name(found, key[1]),
                prompt=self._options.prompt,
                write=lambda text: self._console.print(text, end="", markup=False),
            )
        except ChatError as error:
            sys.stderr.write(f"octavo up: {error}\n")
            return 1
        self._say(
            f"\n\n{stats.num_tokens} tokens in {stats.total_s:.1f} s: {stats.tokens_per_s:.1f} "
            f"tokens/s, the first after {stats.first_token_s:.2f} s"
        )
        files = " ".join(f"-f {path}" for path in self._options.files)
        self._say(
            "\nThis demo ends here. To go on, keep it running:  "
            f"{own_command('octavo')} up {files}\n\n" + self._invitation(local, key, found) + "\n"
        )
        return 0


def _model_name(service: Object | None, default: str) -> str:
    return str(((service or {}).get("status") or {}).get("modelName") or default)


def own_command(name: str) -> str:
    """The command that was installed with Octavo, as typed here; else the one on the PATH."""
    own = Path(sys.executable).parent / name
    if not own.exists():
        return name
    with contextlib.suppress(ValueError):
        return str(own.relative_to(Path.cwd()))
    return str(own)
