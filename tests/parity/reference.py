"""transformers' own Llama on the embedded GGUF, in float64 and float32, with rotary angles in double.

transformers rounds the angles to float32 even in a float64 model; that error grows with the position and
belongs to the reference, not to the engine, so it is removed here.
"""

import copy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Reference:
    """The model twice: in float64 (the truth) and in float32 (what rounding alone does)."""

    def __init__(self, gguf: Path) -> None:
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._torch = torch
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, attn_implementation="eager"
        )
        model.eval()
        self._models: dict[str, Any] = {"float32": model, "float64": copy.deepcopy(model).double()}
        for each in self._models.values():
            _use_double_angles(torch, each)
        self._predicted: dict[tuple[int, ...], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        return [int(t) for t in self._tokenizer.encode(text, add_special_tokens=False)]

    def logits(self, ids: list[int], dtype: str) -> NDArray[np.float64]:
        """[tokens, vocabulary]."""
        with self._torch.no_grad():
            output = self._models[dtype](self._torch.tensor([ids]))
        return np.asarray(output.logits[0].double().numpy())

    def hidden_states(self, ids: list[int], dtype: str) -> NDArray[np.float64]:
        """[layers + 2, tokens, hidden]: embeddings, every layer's output, the final norm."""
        seen: list[Any] = []
        model = self._models[dtype].model

        def keep(_module: Any, _arguments: Any, output: Any) -> None:
            seen.append((output[0] if isinstance(output, tuple) else output).detach())

        hooks = [m.register_forward_hook(keep) for m in (model.embed_tokens, *model.layers, model.norm)]
        try:
            with self._torch.no_grad():
                model(self._torch.tensor([ids]))
        finally:
            for hook in hooks:
                hook.remove()
        return np.stack([s.reshape(len(ids), -1).double().numpy() for s in seen])

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The `count` tokens of highest probability after `ids`, no stop token."""
        output: list[int] = []
        cache = None
        new = ids
        for _ in range(count):
            with self._torch.no_grad():
                result = self._models["float32"](self._torch.tensor([new]), past_key_values=cache, use_cache=True)
            cache = result.past_key_values
            output.append(int(result.logits[0, -1].argmax()))
            new = output[-1:]
        return output

    def predict(self, ids: list[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Log-probabilities of the next token [vocabulary] and hidden states after the final norm [tokens, hidden]."""
        key = tuple(ids)
        if key not in self._predicted:
            with self._torch.no_grad():
                output = self._models["float32"](self._torch.tensor([ids]), output_hidden_states=True)
            logits = output.logits[0, -1].double()
            self._predicted[key] = logits.log_softmax(-1).numpy(), output.hidden_states[-1][0].double().numpy()
        return self._predicted[key]

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
