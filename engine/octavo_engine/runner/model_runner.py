"""Executes the scheduler's steps: the only place where decisions become tensors."""

import torch
from torch import Tensor

from octavo_engine.core.messages import ModelOutput, SchedulerOutput, TokenLogprob
from octavo_engine.kernels.paged_attention import PagedAttention, PagedBatch
from octavo_engine.models.decoder import Decoder
from octavo_engine.runner.input_batch import InputBatch, IntArray, PromptTargets
from octavo_engine.runner.logprobs import make_logprobs
from octavo_engine.runner.sampler import find_failures, sample

# Rows of a prompt whose logits are in memory at once: [tokens of a step, vocabulary] in fp32 may
# be larger than the model.
PROMPT_ROWS_AT_ONCE = 16


class FinishedStep:
    """A step that was computed when it was dispatched."""

    def __init__(self, output: ModelOutput) -> None:
        self._output = output

    def result(self) -> ModelOutput:
        return self._output


class ModelRunner:
    """A `Runner` over one decoder, its cache (which the attention holds) and its sequences."""

    def __init__(self, model: Decoder, attention: PagedAttention, batch: InputBatch) -> None:
        self._model = model
        self._attention = attention
        self._batch = batch

    def dispatch(self, scheduled: SchedulerOutput) -> FinishedStep:
        """Compute a step; see `Runner`.

        It is computed here and now, at any asynchronous depth: on a CPU the step has no device to
        run on beside the host. What overlaps with it is the API, which is another process.
        """
        self._batch.apply(scheduled)
        if scheduled.is_empty:
            return FinishedStep(ModelOutput(token_ids=[]))
        with torch.inference_mode():
            return FinishedStep(self._compute(scheduled))

    def _compute(self, scheduled: SchedulerOutput) -> ModelOutput:
        inputs = self._batch.make_inputs(scheduled)
        attention = self._attention.prepare(
            PagedBatch(
                query_lens=inputs.query_lens,
                context_lens=inputs.context_lens,
                block_table=self._tensor(inputs.block_table),
                slots=self._tensor(inputs.slots),
            )
        )
        hidden = self._model.hidden_states(
            self._tensor(inputs.token_ids), self._tensor(inputs.positions), attention
        )
        failed: dict[str, str] = {}
        prompt_logprobs: dict[str, list[TokenLogprob]] = {}
        for targets in inputs.prompt_targets:
            found = self._prompt_logprobs(hidden, targets)
            if isinstance(found, str):
                failed[targets.request_id] = found
            else:
                prompt_logprobs[targets.request_id] = found
        token_ids: list[list[int]] = [[] for _ in scheduled.request_ids]
        logprobs: dict[str, list[TokenLogprob]] = {}
        if inputs.sampled_rows:
            logits = self._model.logits(hidden[inputs.last_tokens])
            chosen_for = [scheduled.request_ids[row] for row in inputs.sampled_rows]
            sampled = sample(logits, [self._batch.sampler_row(name) for name in chosen_for])
            for index, (row, name) in enumerate(zip(inputs.sampled_rows, chosen_for, strict=True)):
                token = sampled.token_ids[index]
                # Failed ones too: a further step of theirs may be scheduled already.
                self._batch.append_token(name, token)
                if index in sampled.failed:
                    failed.setdefault(name, sampled.failed[index])
                if name in failed:
                    prompt_logprobs.pop(name, None)
                    continue
                token_ids[row] = [token]
                if index in sampled.logprobs:
                    logprobs[name] = [sampled.logprobs[index]]
        return ModelOutput(
            token_ids=token_ids, failed=failed, logprobs=logprobs, prompt_logprobs=prompt_logprobs
        )

    def _prompt_logprobs(self, hidden: Tensor, targets: PromptTargets) -> list[TokenLogprob] | str:
        """Of the prompt tokens that a step's `hidden` states predict, or why there are none."""
        made: list[TokenLogprob] = []
        count = len(targets.token_ids)
        for begin in range(0, count, PROMPT_ROWS_AT_ONCE):
            end = min(begin + PROMPT_ROWS_AT_ONCE, count)
            logits = self._model.logits(hidden[targets.first + begin : targets.first + end])
            wrong = find_failures(logits.amax(-1))
            if wrong:
                return next(iter(wrong.values()))
            made += make_logprobs(
                logits, targets.token_ids[begin:end], [targets.num_top] * (end - begin)
            )
        return made

    def _tensor(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(self._model.device)
