"""A served model without a model: byte tokens, scripted answers, the real server around them."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from octavo_engine.config import CacheShape, ModelDescription, TokenizerSpec
from octavo_engine.core.scheduler import Scheduler, SchedulerConfig
from octavo_engine.serving.core_thread import launch_in_thread
from octavo_engine.serving.launch import Launch, Progress
from octavo_engine.serving.server import EngineServer
from octavo_engine.serving.tokenizer import Tokenizer, byte_alphabet
from octavo_engine.testing import FakeRunner
from octavo_wire.settings import EngineSettings

END_OF_TEXT, IM_START, IM_END = 256, 257, 258
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' "
    "+ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
RAW_PROMPT_END = "<|im_start|>assistant\n"  # also ends raw prompts that a script should answer
MODEL = "tiny"


def make_tokenizer_spec(
    *,
    chat_template: str | None = CHATML,
    add_bos_token: bool = False,
    bos_token_id: int | None = END_OF_TEXT,
    extra_tokens: Sequence[tuple[str, int]] = (),
    pre_tokenizer: str = "smollm",
) -> TokenizerSpec:
    """A token per byte (its id is the byte), one merge, and three control tokens."""
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    tokens = [letters[byte] for byte in range(256)]
    types = [1] * 256
    for text, kind in [
        ("<|endoftext|>", 3),
        ("<|im_start|>", 3),
        ("<|im_end|>", 3),
        ("he", 1),
        *extra_tokens,
    ]:
        tokens.append(text)
        types.append(kind)
    return TokenizerSpec(
        kind="gpt2",
        pre_tokenizer=pre_tokenizer,
        tokens=tokens,
        token_types=types,
        merges=["h e"],
        bos_token_id=bos_token_id,
        eos_token_id=IM_END,
        eos_token_ids=frozenset({IM_END}),
        add_bos_token=add_bos_token,
        chat_template=chat_template,
    )


def as_tokens(text: str) -> list[int]:
    """One token a byte: the most pieces that text can come in."""
    return list(text.encode())


def follow_scripts(scripts: Mapping[str, Sequence[int]]) -> Callable[[Sequence[int]], int]:
    """Answers for prompts that hold a key, ended by <|im_end|>; letters for all other prompts."""
    tokenizer = Tokenizer(make_tokenizer_spec())
    head = tokenizer.encode_markup(RAW_PROMPT_END)

    def choose(history: Sequence[int]) -> int:
        starts = [at for at, token in enumerate(history) if token == IM_START]
        end = starts[-1] + len(head) if starts else 0
        prompt = tokenizer.decode(history[:end])
        for key, script in scripts.items():
            if key in prompt:
                at = len(history) - end
                return script[at] if at < len(script) else IM_END
        return ord("a") + len(history) * 7 % 26

    return choose


@dataclass(frozen=True, kw_only=True)
class FakeEngine:
    scheduler: Scheduler
    runner: FakeRunner
    description: ModelDescription


def make_fake_engine(
    *,
    scripts: Mapping[str, Sequence[int]] | None = None,
    num_blocks: int = 257,
    block_size: int = 4,
    max_num_seqs: int = 8,
    max_model_len: int = 1024,
    max_queued_requests: int = 1024,
    async_depth: int = 0,
    tokenizer: TokenizerSpec | None = None,
    **runner_options: object,
) -> FakeEngine:
    spec = tokenizer or make_tokenizer_spec()
    runner_options.setdefault("choose_token", follow_scripts(scripts or {}))
    return FakeEngine(
        scheduler=Scheduler(
            SchedulerConfig(
                num_blocks=num_blocks,
                block_size=block_size,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=2048,
                max_model_len=max_model_len,
                max_queued_requests=max_queued_requests,
                async_depth=async_depth,
            )
        ),
        runner=FakeRunner(
            num_blocks,
            block_size,
            vocab_size=len(spec.tokens),
            **runner_options,  # type: ignore[arg-type]  # of several types
        ),
        description=ModelDescription(
            name=MODEL,
            vocab_size=len(spec.tokens),
            max_model_len=max_model_len,
            tokenizer=spec,
            cache=CacheShape(num_blocks=num_blocks, block_size=block_size, bytes_per_block=1),
        ),
    )


def pace(seconds: float = 0.002) -> Callable[[object], None]:
    """Steps that take a while, so that a client can leave in the middle of an answer."""
    never = threading.Event()
    return lambda _: bool(never.wait(seconds)) and None


@dataclass
class RunningServer:
    """The real server in a thread; a context manager. `status` is its exit status afterwards."""

    load: Callable[[Progress], FakeEngine]
    launch: Launch | None = None  # instead of `load`
    api_key_file: Path | None = None
    step_log: Path | None = None
    wait_for: str = "ready"
    drain_s: float = 5.0
    drain_accept_s: float = 0.0
    settings: Mapping[str, object] = field(default_factory=dict)  # further ones of the server
    status: int | None = None
    lines: list[str] = field(default_factory=list)

    def __enter__(self) -> "RunningServer":
        self.server = EngineServer(
            EngineSettings(
                model="tiny.gguf",
                port=0,
                api_key_file=str(self.api_key_file) if self.api_key_file else None,
                step_log=str(self.step_log) if self.step_log else None,
                drain_accept_seconds=self.drain_accept_s,
                drain_seconds=self.drain_s,
                **self.settings,  # type: ignore[arg-type]
            ),
            self.launch or launch_in_thread(self.load),
            model_name=MODEL,
            announce=self._announce,
        )
        self._heard = {"listening": threading.Event(), "ready": threading.Event()}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._heard[self.wait_for].wait(20), self.lines
        self.url = self.lines[0].split()[2].rstrip(",")
        self.client = httpx.Client(base_url=self.url, timeout=20)
        return self

    def _run(self) -> None:
        async def run() -> int:
            self.loop = asyncio.get_running_loop()
            return await self.server.run(on_signals=False)

        self.status = asyncio.run(run())

    def _announce(self, line: str) -> None:
        self.lines.append(line)
        for word, event in self._heard.items():
            if line.startswith(word):
                event.set()

    def wait_until_ready(self) -> None:
        assert self._heard["ready"].wait(20), self.lines

    def shut_down(self) -> None:
        """What SIGTERM does."""
        self.loop.call_soon_threadsafe(self.server.shut_down)

    def join(self) -> int | None:
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not end"
        return self.status

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.server.shut_down)
            self.loop.call_soon_threadsafe(self.server.shut_down)
        self.join()

    def metric(self, name: str, **labels: str) -> float:
        """A sample's value, summed over the label values that are not given."""
        from prometheus_client.parser import text_string_to_metric_families

        page = self.client.get("/metrics").text
        found = [
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert found, f"{name} {labels} is not exported"
        return sum(found)


def serve_fake(**options: object) -> RunningServer:
    """A running server over `make_fake_engine(**options)`."""
    server_options = {
        key: options.pop(key)
        for key in (
            "api_key_file",
            "step_log",
            "wait_for",
            "drain_s",
            "drain_accept_s",
            "launch",
            "settings",
        )
        if key in options
    }
    engine = make_fake_engine(**options)  # type: ignore[arg-type]  # of several types
    return RunningServer(load=lambda _: engine, **server_options)  # type: ignore[arg-type]  # of several types
