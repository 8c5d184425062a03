"""transformers' own Llama on the embedded GGUF, in float64 and float32, with rotary angles in double.

transformers rounds the angles to float32 even in a float64 model; that error grows with the position and
belongs to the reference, not to the engine, so it is removed here.
"""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Reference:
    """The model twice: in float64 (the truth) and in float32 (what rounding alone does)."""

    def __init__(self, gguf: Path, tokenizer: Any) -> None:
        import torch
        import transformers

        self._torch = torch
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, attn_implementation="eager"
        )
        model.eval()
        self._models: dict[str, Any] = {"float32": model, "float64": copy.deepcopy(model).double()}
        for each in self._models.values():
            _use_double_angles(torch, each)
        # Several tests ask for the same texts.
        self._pass: Callable[[tuple[int, ...], str], tuple[NDArray[np.floating], NDArray[np.floating]]] = (
            functools.lru_cache(maxsize=32)(self._run)
        )
        self._predicted: dict[tuple[int, ...], tuple[NDArray[np.float64], NDArray[np.float64], Any]] = {}
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        return [int(t) for t in self._tokenizer.encode(text, add_special_tokens=False)]

    def logits(self, ids: list[int], dtype: str) -> NDArray[np.float64]:
        """[tokens, vocabulary]."""
        return self._pass(tuple(ids), dtype)[1].astype(np.float64)

    def hidden_states(self, ids: list[int], dtype: str) -> NDArray[np.float64]:
        """[layers + 2, tokens, hidden]: embeddings, every layer's output, the final norm."""
        return self._pass(tuple(ids), dtype)[0].astype(np.float64)

    def _run(self, ids: tuple[int, ...], dtype: str) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Hidden states and logits, as above, in the model's own precision."""
        seen: list[Any] = []
        model = self._models[dtype]
        base = model.model

        def keep(_module: Any, _arguments: Any, output: Any) -> None:
            seen.append((output[0] if isinstance(output, tuple) else output).detach())

        hooks = [m.register_forward_hook(keep) for m in (base.embed_tokens, *base.layers, base.norm)]
        try:
            with self._torch.no_grad():
                logits = model(self._torch.tensor([ids]), use_cache=False).logits[0]
        finally:
            for hook in hooks:
                hook.remove()
        return np.stack([s.reshape(len(ids), -1).numpy() for s in seen]), logits.numpy()

    def most_probable(self, ids: list[int]) -> list[int]:
        """After each token the one of highest probability.

        A text that goes on with these is greedy, so one pass over a finished text tells whether it is.
        """
        return [int(token) for token in self.logits(ids, "float32").argmax(axis=-1)]

    def predict(self, ids: list[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Log-probabilities of the next token [vocabulary] and hidden states after the final norm [tokens, hidden].

        Goes on from transformers' keys and values of all tokens but the last, if they have been predicted from.
        """
        key = tuple(ids)
        if key not in self._predicted:
            known = self._predicted.get(key[:-1])
            new, past = (ids, None) if known is None else (ids[-1:], copy.deepcopy(known[2]))
            with self._torch.no_grad():
                output = self._models["float32"](
                    self._torch.tensor([new]),
                    past_key_values=past,
                    use_cache=True,
                    output_hidden_states=True,
                    logits_to_keep=1,
                )
            states = output.hidden_states[-1][0].double().numpy()
            if known is not None:
                states = np.concatenate([known[1], states])
            logprobs = output.logits[0, -1].double().log_softmax(-1).numpy()
            self._predicted[key] = logprobs, states, output.past_key_values
        return self._predicted[key][:2]

    def beams(self, ids: list[int], **options: Any) -> list[list[int]]:
        """What `generate` makes of the prompt, without it."""
        output = self._models["float32"].generate(self._torch.tensor([ids]), do_sample=False, **options)
        return [row[len(ids) :] for row in output.tolist()]


def _use_double_angles(torch: Any, model: Any) -> None:
    config = model.config
    head_dim = config.head_dim
    theta = config.rope_parameters["rope_theta"]
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)

    def forward(x: Any, position_ids: Any) -> Any:
        angles = position_ids[..., None].double() * inverse
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)

    model.model.rotary_emb.forward = forward
