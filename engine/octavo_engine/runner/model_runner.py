"""Executes the scheduler's steps: the only place where decisions become tensors."""

import torch
from torch import Tensor

from octavo_engine.core.messages import ModelOutput, SchedulerOutput
from octavo_engine.kernels.paged_attention import PagedAttention, PagedBatch
from octavo_engine.models.decoder import Decoder
from octavo_engine.runner.input_batch import InputBatch, IntArray
from octavo_engine.runner.sampler import sample


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
        """Compute a step; see `Runner`."""
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
        token_ids: list[list[int]] = [[] for _ in scheduled.request_ids]
        failed: dict[str, str] = {}
        if inputs.sampled_rows:
            logits = self._model.logits(hidden[inputs.last_tokens])
            chosen_for = [scheduled.request_ids[row] for row in inputs.sampled_rows]
            sampled = sample(logits, [self._batch.sampler_row(name) for name in chosen_for])
            for index, (row, name) in enumerate(zip(inputs.sampled_rows, chosen_for, strict=True)):
                token = sampled.token_ids[index]
                # Failed ones too: a further step of theirs may be scheduled already.
                self._batch.append_token(name, token)
                if index in sampled.failed:
                    failed[name] = sampled.failed[index]
                else:
                    token_ids[row] = [token]
        return ModelOutput(token_ids=token_ids, failed=failed)

    def _tensor(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(self._model.device)
