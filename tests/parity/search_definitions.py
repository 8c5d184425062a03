"""Searches as their papers define them, from scratch at every step.

Nothing here is shared with the engine: no pages, no rows of likeliest tokens, the whole vocabulary each time.
"""

from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

Predict = Callable[[list[int]], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""All tokens -> log-probabilities of the next one [vocabulary], hidden states after the final norm [tokens, hidden]."""


def contrastive(
    predict: Predict, prompt: list[int], new_tokens: int, candidates: int, alpha: float, ends: Collection[int] = ()
) -> list[int]:
    """Su et al. 2022, equation 5: greedy over (1 - alpha) * p(v) - alpha * max_j cos(h_v, h_j)."""
    text = list(prompt)
    while len(text) < len(prompt) + new_tokens:
        logprobs, _ = predict(text)
        scores = []
        likeliest = np.argsort(-logprobs, kind="stable")[:candidates].tolist()
        for token in likeliest:
            _, states = predict([*text, token])
            unit = states / np.linalg.norm(states, axis=1, keepdims=True)
            scores.append((1 - alpha) * np.exp(logprobs[token]) - alpha * (unit[:-1] @ unit[-1]).max())
        chosen = likeliest[int(np.argmax(scores))]
        if chosen in ends:
            break
        text.append(chosen)
    return text[len(prompt) :]


def diverse_beams(
    predict: Predict, prompt: list[int], new_tokens: int, beams: int, groups: int, strength: float
) -> list[list[int]]:
    """Vijayakumar et al. 2016, algorithm 1, with Hamming diversity; no end tokens, so all have the same length.

    Returns all beams of all groups, the highest augmented log-probability first.
    """
    each = beams // groups
    found: list[list[tuple[float, list[int]]]] = [[(0.0, [])] for _ in range(groups)]
    for _ in range(new_tokens):
        chosen_now: list[int] = []
        for group in range(groups):
            extended = []
            for score, output in found[group]:
                logprobs, _ = predict([*prompt, *output])
                augmented = score + logprobs - strength * np.bincount(chosen_now, minlength=len(logprobs))
                # Of one beam's continuations no more can be among the best.
                likeliest = np.argsort(-augmented, kind="stable")[:each].tolist()
                extended += [(float(augmented[token]), [*output, token]) for token in likeliest]
            extended.sort(key=lambda pair: -pair[0])
            found[group] = extended[:each]
            chosen_now += [output[-1] for _, output in found[group]]
    everything = [pair for group in found for pair in group]
    everything.sort(key=lambda pair: -pair[0])
    return [output for _, output in everything]
