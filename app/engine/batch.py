"""The arrays of one engine step, made from the sequences that take part in it.

It knows nothing of when a step is made or what becomes of its result.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from app.engine.generation import Generation
from app.engine.model_runner import Batch, PromptReader, StateReader, TokenSampler
from app.engine.scheduling.sequence import SequenceState, Step


class BatchArrays:
    """The step's arrays, allocated once; a batch is views of their beginnings."""

    def __init__(self, step_tokens: int, max_sequences: int) -> None:
        self._token_ids = np.zeros(step_tokens, np.int32)
        self._positions = np.zeros(step_tokens, np.int32)
        self._slots = np.zeros(max_sequences, np.int32)
        self._query_lengths = np.zeros(max_sequences, np.int32)
        self._context_lengths = np.zeros(max_sequences, np.int32)

    def fill(
        self,
        step: Step,
        generations: Mapping[SequenceState, Generation],
        interrupt: NDArray[np.int32] | None = None,
    ) -> Batch:
        """Writes the step's tokens and positions; the batch is valid until the next call."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        context_lengths: list[int] = []
        samplers: list[TokenSampler | None] = []
        readers: list[PromptReader | StateReader | None] = []
        reads = False
        drafts: dict[int, int] = {}
        for sequence, count, sample in zip(step.sequences, step.query_lengths, step.samples, strict=True):
            generation = generations[sequence]
            begin = sequence.computed
            if count == 1:
                token_ids.append(generation.tokens[begin])
                positions.append(begin + sequence.dropped)
            else:
                token_ids += generation.tokens[begin : begin + count]
                drafted = begin + count - sequence.length
                if drafted > 0:
                    token_ids += generation.draft_tokens[:drafted]
                    drafts[len(slots)] = drafted
                begin_position = begin + sequence.dropped
                positions += range(begin_position, begin_position + count)
            slots.append(sequence.slot)
            context_lengths.append(begin)
            samplers.append(generation.sampler if sample and generation.request.max_new_tokens else None)
            reader = generation.state_reader if generation.prompt_reader is None else generation.prompt_reader
            readers.append(reader)
            reads = reads or reader is not None
        total, count = len(token_ids), len(slots)
        self._token_ids[:total] = token_ids
        self._positions[:total] = positions
        self._slots[:count] = slots
        self._query_lengths[:count] = step.query_lengths
        self._context_lengths[:count] = context_lengths
        return Batch(
            token_ids=self._token_ids[:total],
            positions=self._positions[:total],
            slots=self._slots[:count],
            query_lengths=self._query_lengths[:count],
            context_lengths=self._context_lengths[:count],
            samplers=samplers,
            readers=readers if reads else (),
            draft_lengths=_draft_lengths(drafts, count) if drafts else None,
            prompts=step.prompts,
            interrupt=interrupt,
        )


def _draft_lengths(drafts: Mapping[int, int], count: int) -> NDArray[np.int32]:
    """Returns [count]: how many draft tokens each sequence has, from {index: draft tokens}."""
    lengths = np.zeros(count, np.int32)
    for index, drafted in drafts.items():
        lengths[index] = drafted
    return lengths
