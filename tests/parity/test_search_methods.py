"""The methods alone, against transformers' beam search and the papers' definitions, on a tiny random Llama.

A vocabulary of few tokens, some of which end the text: so beams end early, late, all at once and never.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.searches.methods import Row, SearchMethod, make_method
from app.messages.requests import BeamParams, ContrastiveParams
from tests.parity.search_definitions import contrastive, diverse_beams
from tests.sizes import some

pytestmark = pytest.mark.parity

VOCAB = 24
PROMPT = [3, 14, 15, 9, 2]


class Tiny:
    """transformers' model, and what it predicts."""

    def __init__(self, seed: int) -> None:
        import torch
        import transformers

        torch.manual_seed(seed)
        config = transformers.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.4,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        self.torch = torch
        self._predicted: dict[tuple[int, ...], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        self.model: Any = transformers.LlamaForCausalLM(config).double()

    def predict(self, tokens: list[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Many searches ask for the same texts."""
        key = tuple(tokens)
        if key not in self._predicted:
            with self.torch.no_grad():
                output = self.model(self.torch.tensor([tokens]), output_hidden_states=True)
            logits = output.logits[0, -1].numpy()
            logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            self._predicted[key] = logprobs, output.hidden_states[-1][0].numpy()
        return self._predicted[key]

    def search(self, method: SearchMethod, change: Callable[[NDArray[np.float64], list[int]], Any]) -> list[list[int]]:
        """Runs a method with rows of just the size that it asks for."""
        texts, output = [list(PROMPT)], list[int]()
        while True:
            rows = []
            for text in texts:
                logprobs, states = self.predict(text)
                logprobs = change(logprobs.copy(), text)
                unit = states / np.linalg.norm(states, axis=1, keepdims=True)
                likeliest = np.argsort(-logprobs, kind="stable")[: method.row_tokens]
                similarity = float((unit[:-1] @ unit[-1]).max())
                rows.append(Row(likeliest.tolist(), logprobs[likeliest].tolist(), similarity))
            advance = method.advance(rows)
            output += advance.token_ids
            if advance.finish_reason is not None:
                return [output, *(list(answer.token_ids) for answer in advance.more)]
            texts = [[*texts[index], token] for index, token in advance.children]


@pytest.fixture(scope="module", params=[0, 2])
def tiny(request: pytest.FixtureRequest) -> Tiny:
    return Tiny(request.param)


def unchanged(logprobs: NDArray[np.float64], text: list[int]) -> NDArray[np.float64]:
    return logprobs


@pytest.mark.parametrize(
    ("ending", "size"),
    some(
        list(product([1.0, 0.0, -1.5, 2.5], [False, True, "never"])),
        [(1, [5]), (3, [5]), (4, [5, 6, 7]), (6, list(range(12))), (4, [])],
    ),
)
def test_beam_search_is_transformers(tiny: Tiny, ending: tuple[float, Any], size: tuple[int, list[int]]) -> None:
    (length_penalty, early_stopping), (beams, ends) = ending, size
    output = (
        tiny.model.generate(
            tiny.torch.tensor([PROMPT]),
            max_new_tokens=12,
            num_beams=beams,
            num_return_sequences=beams,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            do_sample=False,
            eos_token_id=ends or None,
            pad_token_id=0,
        )
        if beams > 1
        else tiny.model.generate(
            tiny.torch.tensor([PROMPT]), max_new_tokens=12, do_sample=False, eos_token_id=ends or None, pad_token_id=0
        )
    )
    expected = [_until(row[len(PROMPT) :], ends) for row in output.tolist()]
    params = BeamParams(beams, beams, length_penalty, early_stopping)
    assert tiny.search(make_method(params, 12, ends), unchanged) == expected


def _until(tokens: list[int], ends: list[int]) -> list[int]:
    """Without the end token and what fills up after it."""
    return tokens[: next((index for index, token in enumerate(tokens) if token in ends), len(tokens))]


def test_penalties_and_a_least_length_are_transformers(tiny: Tiny) -> None:
    """As the native sampler does it with `penalize_logprobs`."""

    def change(logprobs: NDArray[np.float64], text: list[int]) -> NDArray[np.float64]:
        for token in set(text):
            logprobs[token] *= 1.7
        if len(text) < len(PROMPT) + 4:
            logprobs[[5, 6]] = -np.inf
        return logprobs

    output = tiny.model.generate(
        tiny.torch.tensor([PROMPT]),
        max_new_tokens=10,
        min_new_tokens=4,
        num_beams=4,
        num_return_sequences=4,
        repetition_penalty=1.7,
        do_sample=False,
        eos_token_id=[5, 6],
        pad_token_id=0,
    )
    expected = [_until(row[len(PROMPT) :], [5, 6]) for row in output.tolist()]
    assert tiny.search(make_method(BeamParams(4, 4), 10, [5, 6]), change) == expected


@pytest.mark.parametrize(("beams", "groups"), [(4, 2), (6, 3), (6, 6), (6, 2)])
@pytest.mark.parametrize("strength", [0.3, 5.0])
def test_diverse_beams_are_the_papers(tiny: Tiny, beams: int, groups: int, strength: float) -> None:
    expected = diverse_beams(tiny.predict, PROMPT, 7, beams, groups, strength)
    params = BeamParams(beams, beams, groups=groups, diversity_penalty=strength)
    assert tiny.search(make_method(params, 7, []), unchanged) == expected


@pytest.mark.parametrize(("candidates", "alpha"), [(4, 0.6), (8, 0.3), (1, 0.6), (5, 0.0), (6, 1.0)])
@pytest.mark.parametrize("ends", [[], [1, 4, 7, 10]])
def test_contrastive_search_is_the_papers(tiny: Tiny, candidates: int, alpha: float, ends: list[int]) -> None:
    expected = contrastive(tiny.predict, PROMPT, 12, candidates, alpha, ends)
    method = make_method(ContrastiveParams(candidates, alpha), 12, ends)
    assert tiny.search(method, unchanged) == [expected]
