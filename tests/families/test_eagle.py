"""EAGLE-3 heads: drafts beside a reference of our own in torch, made from what is published of them.

The head's input at a token is the next token's embedding and a projection of three hidden states of the model; its
recurrent state is its own output. Published forms: `midlayer.*` with Llama's configuration, and Speculators'.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from app.messages.model_card import ModelCard
from app.model_check import check_files
from app.settings.knobs import SettingsError
from quant.codes.matrix import F32
from quant.conversion.convert import convert
from quant.conversion.export import export
from quant.errors import QuantError
from quant.packed.packed_file import PackedFile
from tests.families import parity
from tests.families.test_predictors import draft
from tests.kernels.tiny_model import Sequences
from tests.quant.checkpoints import byte_tokenizer

pytestmark = pytest.mark.parity

HIDDEN, LAYERS, ROWS, EPSILON = 64, 7, 120, 1e-5
MODEL: dict[str, Any] = {
    "hidden_size": HIDDEN, "intermediate_size": 96, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096,
}  # fmt: skip
LAYER: dict[str, Any] = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 160, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "rms_norm_eps": EPSILON, "rope_theta": 500.0,
    "vocab_size": parity.VOCABULARY, "max_position_embeddings": 2048, "hidden_act": "silu",
}  # fmt: skip
AUXILIARY = "eagle_aux_hidden_state_layer_ids"
CONFIGS: dict[str, dict[str, Any]] = {
    "eagle": {**LAYER, "architectures": ["LlamaForCausalLM"], "draft_vocab_size": ROWS},
    "specforge": {**LAYER, "architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {AUXILIARY: [0, 3, 6]}},
    "speculators": {
        "architectures": ["Eagle3Speculator"], "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "speculators_model_type": "eagle3", "draft_vocab_size": ROWS, "target_hidden_size": None, AUXILIARY: [1, 3, 6],
        "norm_before_residual": True, "norm_before_fc": True, "norm_output": True, "transformer_layer_config": LAYER,
    },
}  # fmt: skip
STATES = {"eagle": (2, 3, 4), "specforge": (1, 4, 7), "speculators": (1, 3, 6)}
DEPTH = 3


class Reference:
    """A model and a head of random weights, saved in folders as published ones are."""

    def __init__(self, form: str, folder: Path, kind: str = "Qwen2") -> None:
        import torch

        self.form, self.folder = form, folder
        sizes = {key: each for key, each in MODEL.items() if kind != "GPTNeoX" or key != "num_key_value_heads"}
        self.model = parity.random_model(kind, folder / "m", **sizes)
        byte_tokenizer().save(str(folder / "m/tokenizer.json"))
        torch.manual_seed(1)
        layer = "layers.0." if form == "speculators" else "midlayer."
        shapes = {
            "fc": (HIDDEN, 3 * HIDDEN), "self_attn.q_proj": (64, 2 * HIDDEN), "self_attn.k_proj": (32, 2 * HIDDEN),
            "self_attn.v_proj": (32, 2 * HIDDEN), "self_attn.o_proj": (HIDDEN, 64), "mlp.gate_proj": (160, HIDDEN),
            "mlp.up_proj": (160, HIDDEN), "mlp.down_proj": (HIDDEN, 160), "lm_head": (ROWS, HIDDEN),
        }  # fmt: skip
        self.weights = {name: torch.randn(shape) * 0.1 for name, shape in shapes.items()}
        norms = {"input_layernorm": 1, "hidden_norm": 1, "post_attention_layernorm": 1, "norm": 1, "input_norm": 3}
        self.weights |= {name: torch.rand(times * HIDDEN) + 0.5 for name, times in norms.items()}
        generator = np.random.default_rng(2)
        self.tokens = generator.permutation(parity.VOCABULARY)[:ROWS]
        if form == "eagle":
            self.tokens.sort()
        own = ("fc", "lm_head", "norm", "input_norm")
        stored = {f"{'' if name in own else layer}{name}.weight": each.numpy() for name, each in self.weights.items()}
        if form != "speculators":
            del stored["input_norm.weight"]
        if form == "specforge":  # the model's head, for all tokens
            del stored["lm_head.weight"]
            self.weights["lm_head"], self.tokens = self.model.lm_head.weight, np.arange(parity.VOCABULARY)
        else:
            stored["d2t"] = self.tokens - np.arange(ROWS)
            stored["t2d"] = np.isin(np.arange(parity.VOCABULARY), self.tokens)
        if form == "speculators":
            stored["embed_tokens.weight"] = self.model.get_input_embeddings().weight.detach().numpy()
        (folder / "head").mkdir()
        save_file(stored, folder / "head/model.safetensors")
        (folder / "head/config.json").write_text(json.dumps(CONFIGS[form]))

    def norm(self, name: str, x: Any) -> Any:
        import torch

        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON) * self.weights[name]

    def layer(self, embeddings: Any, hidden: Any) -> Any:
        """The states [n, hidden] of the tokens whose embeddings these are, from the hidden states before them."""
        import torch

        of = {name: each.T for name, each in self.weights.items() if each.ndim == 2}
        normalized = self.norm("hidden_norm", hidden)
        x = normalized if self.form == "speculators" else hidden
        both = torch.cat([self.norm("input_layernorm", embeddings), normalized], -1)
        count, half = len(both), 16
        query = (both @ of["self_attn.q_proj"]).view(count, 2, 32)
        key = (both @ of["self_attn.k_proj"]).view(count, 1, 32)
        value = both @ of["self_attn.v_proj"]
        angles = torch.arange(count)[:, None] * 500.0 ** (-torch.arange(half) / half)
        cosine, sine = angles.cos()[:, None], angles.sin()[:, None]

        def turned(heads: Any) -> Any:
            first, second = heads[..., :half], heads[..., half:]
            return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)

        scores = torch.einsum("qhd,kd->hqk", turned(query), turned(key)[:, 0]) / 32**0.5
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
        attended = torch.einsum("hqk,kd->qhd", scores.softmax(-1), value).reshape(count, 64)
        x = x + attended @ of["self_attn.o_proj"]
        inner = self.norm("post_attention_layernorm", x)
        gate = torch.nn.functional.silu(inner @ of["mlp.gate_proj"])
        return x + (gate * (inner @ of["mlp.up_proj"])) @ of["mlp.down_proj"]

    def drafts(self, ids: list[int], depth: int) -> tuple[list[int], F32]:
        """Drafts behind ids, whose last token no step has computed yet, and their probabilities."""
        import torch

        embed, base = self.model.get_input_embeddings(), self.model.base_model
        kept: dict[int, Any] = {}

        def keep(number: int) -> Any:
            return lambda _, __, output: kept.__setitem__(number + 1, output[0] if type(output) is tuple else output)

        hooks = [each.register_forward_hook(keep(i)) for i, each in enumerate(base.layers)]
        with torch.no_grad():
            base(torch.tensor([ids[:-1]]), use_cache=False)
            for hook in hooks:
                hook.remove()
            states = torch.cat([kept[number].reshape(-1, HIDDEN) for number in STATES[self.form]], -1)
            if self.form == "speculators":
                states = self.norm("input_norm", states)
            embeddings, hidden = embed(torch.tensor(ids[1:])), states @ self.weights["fc"].T
            drafts, chances = [], []
            for _ in range(depth):
                state = self.layer(embeddings, hidden)[-1:]
                logits = (self.norm("norm", state) @ self.weights["lm_head"].T).double()[0]
                drafts.append(int(self.tokens[int(logits.argmax())]))
                chances.append(float(logits.softmax(-1).max()))
                state = self.norm("norm", state) if self.form == "speculators" else state
                embeddings = torch.cat([embeddings, embed(torch.tensor(drafts[-1:]))])
                hidden = torch.cat([hidden, state])
        return drafts, np.array(chances, np.float32)


def packed(form: str, folder: Path, *, kind: str = "Qwen2", **options: Any) -> tuple[Reference, Path, str]:
    """The reference, and the folders of the converted model and of the converted head."""
    reference = Reference(form, folder, kind)
    for name in ("m", "head"):
        convert(folder / name, folder / f"{name}-packed", **{"qtype": "fp32", "progress": False, **options})
    return reference, folder / "m-packed", str(folder / "head-packed")


@pytest.mark.parametrize(
    ("form", "kind"), [*((form, "Qwen2") for form in CONFIGS), ("eagle", "Gemma2"), ("speculators", "GPTNeoX")]
)
def test_drafts(form: str, kind: str, tmp_path: Path) -> None:
    """At page ends too, whatever the chunks, alone and beside others; the model's logits are as without the head."""
    reference, folder, head = packed(form, tmp_path, kind=kind)
    ids = parity.prompt()
    ends = (1, 2, 31, 32, 33, 62, 63, 64, 65, 100)
    wanted = {end: reference.drafts(ids[: end + 1], DEPTH) for end in ends}
    alone = Sequences(folder, sequences=1).logits({0: ids[:100]})
    for chunk in (1, 7, 200):
        sequences = Sequences(folder, sequences=1, predicts=head)
        done, logits = 0, []
        for end in ends:
            logits += [sequences.logits({0: ids[at : min(at + chunk, end)]}) for at in range(done, end, chunk)]
            done = end
            tokens, chances = draft(sequences, {0: (ids[end], end)})
            assert tokens.tolist() == [wanted[end][0]], (chunk, end)
            np.testing.assert_allclose(chances[0], wanted[end][1], rtol=2e-3)
        np.testing.assert_array_equal(np.concatenate(logits), alone)
    together = Sequences(folder, sequences=3, predicts=head)
    together.logits({0: ids[:33], 2: ids[:63], 1: ids[:2]})
    tokens, chances = draft(together, {1: (ids[2], 2), 2: (ids[63], 63), 0: (ids[33], 33)})
    assert tokens.tolist() == [wanted[end][0] for end in (2, 63, 33)]
    # Nothing is drafted from a hidden state of another place.
    assert draft(together, {1: (ids[3], 3)})[0].tolist() == [[-1] * DEPTH]


@pytest.mark.parametrize("kv_type", ["int16", "int8"])
def test_service_types(kv_type: str, tmp_path: Path) -> None:
    """Drafts do not depend on chunks and neighbours, and are near the reference's; so are those after wrong ones."""
    reference, folder, head = packed("eagle", tmp_path, qtype="int8", group_size=32)
    ids = parity.prompt()
    options: dict[str, Any] = {"predicts": head, "compute_type": "int8", "kv_type": kv_type}
    alone, together = Sequences(folder, sequences=1, **options), Sequences(folder, sequences=3, **options)
    alone.logits({0: ids[:50]})
    for at in range(0, 50, 10):
        together.logits({2: ids[at : at + 10], 0: ids[at : at + 5]})
    tokens, chances = draft(alone, {0: (ids[50], 50)})
    beside, of_beside = draft(together, {0: (ids[25], 25), 2: (ids[50], 50)})
    assert beside[1].tolist() == tokens[0].tolist()
    np.testing.assert_array_equal(of_beside[1], chances[0])
    near = reference.drafts(ids[:51], 1)[1][0]
    assert abs(float(chances[0, 0]) - near) < 0.3 * near


def test_wrong_drafts_are_written_over(tmp_path: Path) -> None:
    """After a step with drafts the next one drafts as if the wrong ones had never been computed."""
    from kernels import _native

    reference, folder, head = packed("speculators", tmp_path)
    ids = parity.prompt()
    text, alone = ids[:31], Sequences(folder, sequences=1)
    rows = alone.logits({0: text})
    while len(text) < 36:  # the greedy text, to know which drafts are right
        text.append(int(rows[-1].argmax()))
        rows = alone.logits({0: text[-1:]})
    for right in range(4):
        sequences = Sequences(folder, sequences=1, predicts=head)
        sequences.logits({0: ids[:30]})
        sampler = _native.Sampler(vocab_size=parity.VOCABULARY, prompt=ids[:31], temperature=0.0)
        drafts = [token if place < right else (token + 1) % 320 for place, token in enumerate(text[31:34])]
        tokens, positions, slots, queries, contexts, lengths = (
            np.array(each, np.int32) for each in ([ids[30], *drafts], range(30, 34), [0], [4], [30], [3])
        )
        sampled = sequences.model.step(tokens, positions, slots, queries, contexts, [sampler], draft_lengths=lengths)
        assert sampled.tolist() == text[31 : 32 + right] + [-1] * (3 - right)
        known = text[: 32 + right]
        assert draft(sequences, {0: (known[-1], len(known) - 1)})[0].tolist() == [reference.drafts(known, DEPTH)[0]]


def test_a_converted_head(tmp_path: Path) -> None:
    """Its rows come in the order of their tokens, in 4 bits, with no tokenizer; it can't be served by itself."""
    reference, _, head = packed("speculators", tmp_path, qtype="auto", group_size=32)
    file = PackedFile(Path(head) / "model.safetensors")
    assert file.decoder.predictor is not None
    assert (file.decoder.layers, file.decoder.predictor.states) == ((), (1, 3, 6))
    assert file.vector("model.predictor.head_tokens").tolist() == sorted(reference.tokens.tolist())
    assert {info.type for info in file.matrices.values()} == {"sym_int4"}
    rows = file.dequantize("model.predictor.head.weight")
    np.testing.assert_allclose(rows, reference.weights["lm_head"].numpy()[reference.tokens.argsort()], atol=0.05)
    assert {path.name for path in Path(head).iterdir()} == {"config.json", "model.safetensors"}
    with pytest.raises(SettingsError, match=r"is an EAGLE-3 head, .* set it as model\.draft"):
        check_files(ModelCard("head", head, None, "refuse"))
    with pytest.raises(QuantError, match="is an EAGLE-3 head, no model; keep the original checkpoint"):
        export(Path(head), tmp_path / "exported", progress=False)
    with pytest.raises(ValueError, match="an EAGLE-3 head drafts for a model, and is none itself"):
        Sequences(Path(head), sequences=1)


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "two layers": ({"num_hidden_layers": 2}, {}, r"num_hidden_layers 2 is not supported; supported: 1"),
    "another size": ({"target_hidden_size": 96}, {}, r"target_hidden_size 96 is not supported; supported: 64"),
    "norms of states": ({"fc_norm": True}, {}, r"fc_norm True is not supported"),
    "an embedding of its own": ({"embed_requires_grad": True}, {}, r"embed_requires_grad True is not supported"),
    "a window": ({"layer_types": ["sliding_attention"]}, {}, r"layer_types names another attention"),
    "two states": ({"eagle_config": {AUXILIARY: [1, 2]}}, {}, r"layer_ids is \[1, 2\], not a list of 3"),
    "a negative state": ({AUXILIARY: [-1, 1, 2]}, {}, r"layer_ids is \[-1, 1, 2\], not numbers of layers"),
    "quantized": ({"quantization_config": {"quant_method": "awq"}}, {}, r"the head is already quantized"),
    "no fc": ({}, {"fc.weight": None}, r"lacks the tensor 'fc.weight'"),
    "fc of one state": ({}, {"fc.weight": np.zeros((HIDDEN, HIDDEN), np.float32)}, r"'fc.weight'.* has the shape"),
    "another tensor": ({}, {"fc.bias": np.zeros(HIDDEN, np.float32)}, r"has the tensor 'fc.bias'"),
    "no d2t": ({}, {"d2t": None}, r"its head has 120 rows, and no d2t says which tokens they are"),
    "d2t of floats": ({}, {"d2t": np.zeros(ROWS, np.float32)}, r"d2t'.* is F32 \(120,\), not I64 \(120,\)"),
    "tokens twice": ({}, {"d2t": -np.arange(ROWS)}, r"names tokens twice, or others than the model's 320"),
    "no such token": ({}, {"d2t": np.full(ROWS, 300)}, r"names tokens twice, or others than the model's 320"),
}


@pytest.fixture(scope="module")
def head_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("head")
    Reference("eagle", folder)
    return folder / "head"


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case: str, head_folder: Path, tmp_path: Path) -> None:
    config, tensors, reason = WRONG[case]
    changed = shutil.copytree(head_folder, tmp_path / "changed")
    (changed / "config.json").write_text(json.dumps({**CONFIGS["eagle"], **config}))
    stored = {**parity.stored_tensors(changed), **tensors}
    save_file({name: each for name, each in stored.items() if each is not None}, changed / "model.safetensors")
    with pytest.raises(QuantError, match=reason):
        convert(changed, tmp_path / "out", progress=False)


@pytest.mark.parametrize("options", [{"method": "gptq"}, {"bits": 5.0}, {"chat_template": "{{ messages }}"}])
def test_options_that_a_head_has_not(options: dict[str, Any], head_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(QuantError, match="is an EAGLE-3 head, which is rounded to nearest"):
        convert(head_folder, tmp_path / "out", progress=False, **options)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"hidden_size": 32, "num_attention_heads": 2}, "a hidden size of 64, and this one has 32"),
        ({"vocab_size": 352}, "a vocabulary of 320, and this one has 352"),
        ({"num_hidden_layers": 2}, "the head reads hidden states behind layers that this model of 2 does not have"),
    ],
)
def test_a_head_of_another_model(changed: dict[str, int], reason: str, head_folder: Path, tmp_path: Path) -> None:
    parity.random_model("Qwen2", tmp_path / "m", **{**MODEL, **changed})
    byte_tokenizer().save(str(tmp_path / "m/tokenizer.json"))
    for source, name in ((tmp_path / "m", "packed"), (head_folder, "head")):
        convert(source, tmp_path / name, qtype="fp32", progress=False)
    with pytest.raises(ValueError, match=f"^predicts: .*{reason}"):
        Sequences(tmp_path / "packed", sequences=1, predicts=str(tmp_path / "head"))
