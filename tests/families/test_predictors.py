"""Multi-token prediction: drafts of every family beside the published formula, made of transformers' own layers.

The reference is a second model of one layer, whose input is the projection of both norms and whose final norm is the
predictor's; its logits are the model's head's. transformers has no multi-token prediction of its own.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from quant.codes.matrix import F32
from quant.conversion.convert import convert
from quant.conversion.draft_head import likeliest
from quant.packed.packed_file import PackedFile
from tests.families import parity, test_deepseek, test_qwen3_next
from tests.kernels.tiny_model import Sequences
from tests.quant.checkpoints import byte_tokenizer

pytestmark = pytest.mark.parity

DENSE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096,
}  # fmt: skip
LONG = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
"""Behind the context that it was trained for, the layer turns as the model does."""
QWEN: dict[str, Any] = test_qwen3_next.SIZES
EXPERTS: dict[str, Any] = {**QWEN, **test_qwen3_next.EXPERTS}
FULL = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
LATENT: dict[str, Any] = {**test_deepseek.SIZES, "q_lora_rank": 64, "qk_nope_head_dim": 32}
CASES: dict[str, tuple[str, str | None, dict[str, Any], dict[str, Any]]] = {
    "mimo": ("Qwen2", None, {**DENSE, "rope_parameters": LONG}, {"num_hidden_layers": 1}),
    "qwen3.5": ("Qwen3_5", "Qwen3_5Text", QWEN, FULL),
    "qwen3.5, tied": ("Qwen3_5", "Qwen3_5Text", {**QWEN, "tie_word_embeddings": True}, FULL),
    "qwen3.5-moe": ("Qwen3_5Moe", "Qwen3_5MoeText", EXPERTS, FULL),
    "qwen3-next": ("Qwen3Next", None, EXPERTS, FULL),
    "deepseek-v3": (
        "DeepseekV3",
        None,
        {**LATENT, "first_k_dense_replace": 1},
        {"num_hidden_layers": 1, "first_k_dense_replace": 0},
    ),
    "glm-4.7-flash": ("Glm4MoeLite", None, LATENT, {"num_hidden_layers": 1, "mlp_layer_types": ["sparse"]}),
}
"""(classes, configuration, sizes, what is different in the model of one layer)"""
DEPTH = 3


class Reference:
    """A model and its predictor, saved in a folder as published checkpoints are."""

    def __init__(self, case: str, folder: Path) -> None:
        import torch

        kind, configuration, sizes, of_layer = CASES[case]
        self.case = case
        layer_sizes = {**sizes, **of_layer}
        self.model = parity.random_model(kind, folder, configuration=configuration, **sizes)
        self.block = parity.random_model(kind, folder / "block", configuration=configuration, **layer_sizes)
        hidden = sizes["hidden_size"]
        norm = type(self.model.model.norm)
        self.projection = torch.nn.Linear(2 * hidden, hidden, bias=False)
        self.of_embedding, self.of_hidden = norm(hidden), norm(hidden)
        with torch.no_grad():
            for model in (self.model, self.block):
                test_deepseek.with_biases(model)
            for own in (self.of_embedding, self.of_hidden):
                own.weight.copy_(torch.rand(hidden) + 0.5)
            self.projection.weight.copy_(torch.randn(hidden, 2 * hidden) * 0.1)
        self.model.save_pretrained(folder)
        self.block.save_pretrained(folder / "block")
        self._save(folder, len(self.model.model.layers))

    def _save(self, folder: Path, layers: int) -> None:
        own = {
            "mimo": ("model.mtp_layers.0.", "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
            "deepseek-v3": (f"model.layers.{layers}.", "enorm", "hnorm", "eh_proj", "shared_head.norm"),
        }
        own["glm-4.7-flash"] = own["deepseek-v3"]
        qwen = ("mtp.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
        prefix, embedding, hidden, projection, norm = own.get(self.case, qwen)
        layer = "mtp.layers.0." if prefix == "mtp." else prefix
        block = load_file(folder / "block/model.safetensors")
        tensors = {
            layer + name.removeprefix("model.layers.0."): each
            for name, each in block.items()
            if name.startswith("model.layers.0.")
        }
        tensors[f"{prefix}{embedding}.weight"] = self.of_embedding.weight.detach().numpy()
        tensors[f"{prefix}{hidden}.weight"] = self.of_hidden.weight.detach().numpy()
        weight = self.projection.weight.detach().numpy()
        tensors[f"{prefix}{projection}.weight"] = np.roll(weight, 64, axis=1) if self.case == "mimo" else weight
        tensors[f"{prefix}{norm}.weight"] = block["model.norm.weight"]
        save_file({**load_file(folder / "model.safetensors"), **tensors}, folder / "model.safetensors")
        if self.case == "mimo":
            config = json.loads((folder / "config.json").read_text())
            changed = {"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "auto_map": {}}
            (folder / "config.json").write_text(json.dumps({**config, **changed}))

    def drafts(self, ids: list[int], depth: int, head: list[int] | None = None) -> tuple[list[int], F32]:
        """Drafts behind ids, whose last token no step has computed yet, and their probabilities.

        head: the tokens that may be drafted; None: all.
        """
        import torch

        allowed = torch.tensor(range(parity.VOCABULARY) if head is None else head)

        with torch.no_grad():
            embed = self.model.model.embed_tokens
            hidden = self.model.model(torch.tensor([ids[:-1]]), use_cache=False).last_hidden_state[0]
            drafts, chances = [], []
            after = self.of_embedding(embed(torch.tensor(ids[1:])))
            inputs = self.projection(torch.cat([after, self.of_hidden(hidden)], -1))
            for _ in range(depth):
                states = self.block.model(inputs_embeds=inputs[None], use_cache=False).last_hidden_state[0]
                logits = self.model.lm_head(states[-1]).double()[allowed]
                drafts.append(int(allowed[logits.argmax()]))
                chances.append(float(logits.softmax(-1).max()))
                own = torch.cat([self.of_embedding(embed(torch.tensor(drafts[-1:]))), self.of_hidden(states[-1:])], -1)
                inputs = torch.cat([inputs, self.projection(own)])
        return drafts, np.array(chances, np.float32)


def packed(case: str, folder: Path, **options: Any) -> tuple[Reference, Path]:
    reference = Reference(case, folder / "m")
    byte_tokenizer().save(str(folder / "m/tokenizer.json"))
    convert(folder / "m", folder / "packed", **{"qtype": "fp32", "progress": False, **options})
    return reference, folder / "packed"


def draft(sequences: Sequences, last: dict[int, tuple[int, int]], depth: int = DEPTH) -> tuple[Any, Any]:
    """last: of each slot, the last token and how many are before it."""
    tokens, places = ([np.int32(each[i]) for each in last.values()] for i in range(2))
    counts = np.array(places, np.int32)
    return sequences.model.draft(np.array(tokens, np.int32), counts, np.array(list(last), np.int32), counts, depth)


@pytest.mark.parametrize("case", CASES)
def test_drafts(case: str, tmp_path: Path) -> None:
    """At page ends too, whatever the chunks, alone and beside others."""
    reference, folder = packed(case, tmp_path)
    ids = parity.prompt()
    ends = (1, 2, 31, 32, 33, 62, 63, 64, 65, 100)
    wanted = {end: reference.drafts(ids[: end + 1], DEPTH) for end in ends}
    for chunk in (1, 7, 200):
        sequences = Sequences(folder, sequences=1, predicts=True)
        done = 0
        for end in ends:
            for at in range(done, end, chunk):
                sequences.logits({0: ids[at : min(at + chunk, end)]})
            done = end
            tokens, chances = draft(sequences, {0: (ids[end], end)})
            assert tokens.tolist() == [wanted[end][0]], (chunk, end)
            np.testing.assert_allclose(chances[0], wanted[end][1], rtol=2e-3)
    together = Sequences(folder, sequences=3, predicts=True)
    together.logits({0: ids[:33], 2: ids[:63], 1: ids[:2]})
    tokens, chances = draft(together, {1: (ids[2], 2), 2: (ids[63], 63), 0: (ids[33], 33)})
    assert tokens.tolist() == [wanted[end][0] for end in (2, 63, 33)]
    # Nothing is drafted from a hidden state of another place.
    assert draft(together, {1: (ids[3], 3)})[0].tolist() == [[-1] * DEPTH]


@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_same_with_and_without(case: str, tmp_path: Path) -> None:
    reference, folder = packed(case, tmp_path)
    ids, found = parity.prompt(), []
    with_it, without = Sequences(folder, sequences=1, predicts=True), Sequences(folder, sequences=1)
    for at in range(0, 150, 50):
        found.append(with_it.logits({0: ids[at : at + 50]}))
        draft(with_it, {0: (ids[at], at + 50)})
        np.testing.assert_array_equal(found[-1], without.logits({0: ids[at : at + 50]}))
    parity.close(np.concatenate(found), parity.reference_logits(reference.model, ids))


def test_calibration_leaves_the_predictor_as_it_is_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quant.conversion.calibrated.LEAST_TOKENS", 2048)
    monkeypatch.setattr("quant.conversion.calibrated.TOKENS_PER_INPUT", 1)
    files = {}
    for method in ("rtn", "gptq"):
        _, folder = packed("mimo", tmp_path / method, method=method, qtype="sym_int4", group_size=32)
        files[method] = PackedFile(folder / "model.safetensors")
    rounded, chosen = files["rtn"], files["gptq"]
    same = {
        name: np.array_equal(rounded.codes(name).codes, chosen.codes(name).codes)
        for name, info in rounded.matrices.items()
        if info.type == "sym_int4"
    }
    assert {name for name, is_same in same.items() if is_same} == {
        name for name in same if name.startswith(("model.predictor.", "lm_head."))
    }
    assert len(same) == 2 * 7 + 8 + 1


def test_draft_by_draft_is_the_same(tmp_path: Path) -> None:
    """Each call goes on from the one before, until a step ends elsewhere or another sequence has the slot."""
    _, folder = packed("qwen3.5", tmp_path)
    ids = parity.prompt()
    sequences = Sequences(folder, sequences=2, predicts=True)
    sequences.logits({0: ids[:31], 1: ids[:40]})
    whole, of_whole = draft(sequences, {0: (ids[31], 31), 1: (ids[40], 40)}, 5)
    last, found, chances = {0: (ids[31], 31), 1: (ids[40], 40)}, [], []
    for _ in range(5):
        tokens, own = draft(sequences, last, 1)
        found.append(tokens[:, 0])
        chances.append(own[:, 0])
        last = {slot: (int(tokens[slot, 0]), last[slot][1] + 1) for slot in last}
    np.testing.assert_array_equal(np.stack(found, 1), whole)
    np.testing.assert_array_equal(np.stack(chances, 1), of_whole)
    # One of them alone goes on, the other one begins again.
    assert (draft(sequences, {0: last[0]}, 1)[0] >= 0).all()
    assert draft(sequences, {1: (ids[40], 40)}, 5)[0].tolist() == [whole[1].tolist()]
    sequences.logits({0: ids[31:33]})
    assert draft(sequences, {0: (ids[36], 36)}, 1)[0].tolist() == [[-1]]
    # As many drafts as fit the slot's page.
    assert (draft(sequences, {0: (ids[33], 33)}, 16)[0] >= 0).all()
    assert draft(sequences, {0: (0, 49)}, 1)[0].tolist() == [[-1]]
    with pytest.raises(ValueError, match=r"depth: 17 is not in 1 \.\. 16"):
        draft(sequences, {0: (ids[33], 33)}, 17)


def test_wrong_drafts_are_written_over(tmp_path: Path) -> None:
    """After a step with drafts the next one drafts as if the wrong ones had never been computed."""
    from kernels import _native

    reference, folder = packed("qwen3.5", tmp_path)
    ids = parity.prompt()
    for right in range(4):
        sequences = Sequences(folder, sequences=1, predicts=True)
        sequences.logits({0: ids[:30]})
        sampler = _native.Sampler(vocab_size=parity.VOCABULARY, prompt=ids[:31], temperature=0.0)
        # The greedy text, to know which drafts are right.
        alone = Sequences(folder, sequences=1)
        text = ids[:31]
        rows = alone.logits({0: text})
        while len(text) < 36:
            text.append(int(rows[-1].argmax()))
            rows = alone.logits({0: text[-1:]})
        drafts = [token if place < right else (token + 1) % 320 for place, token in enumerate(text[31:34])]
        tokens, positions, slots, queries, contexts = (
            np.array(each, np.int32) for each in ([ids[30], *drafts], range(30, 34), [0], [4], [30])
        )
        lengths = np.array([3], np.int32)
        sampled = sequences.model.step(tokens, positions, slots, queries, contexts, [sampler], draft_lengths=lengths)
        count = 1 + right
        assert sampled.tolist() == text[31 : 31 + count] + [-1] * (3 - right)
        known = text[: 31 + count]
        found, chances = draft(sequences, {0: (known[-1], len(known) - 1)})
        wanted, of_wanted = reference.drafts(known, DEPTH)
        assert found.tolist() == [wanted], right
        np.testing.assert_allclose(chances[0], of_wanted, rtol=2e-3)


def test_a_head_of_the_likeliest_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quant.conversion.draft_head.DRAFT_HEAD_TOKENS", 100)
    monkeypatch.setattr("quant.conversion.draft_head.LEAST_VOCABULARY", 200)
    text = tmp_path / "text.txt"
    text.write_text("zebras " * 400)
    reference, folder = packed("qwen3.5", tmp_path, calibration_text=text)
    file = PackedFile(folder / "model.safetensors")
    assert file.decoder.predictor is not None
    assert file.decoder.predictor.head_tokens == 100
    tokens = load_file(folder / "model.safetensors")["model.predictor.head_tokens"].astype(int).tolist()
    of_text = byte_tokenizer().encode(text.read_text(), add_special_tokens=False).ids
    assert set(of_text) <= set(tokens)
    assert tokens == sorted(set(of_text) | set(range(100 - len(set(of_text)))) | set(tokens))
    ids = parity.prompt()
    sequences = Sequences(folder, sequences=1, predicts=True)
    sequences.logits({0: ids[:40]})
    wanted, of_wanted = reference.drafts(ids[:41], DEPTH, tokens)
    found, chances = draft(sequences, {0: (ids[40], 40)})
    assert found.tolist() == [wanted]
    np.testing.assert_allclose(chances[0], of_wanted, rtol=2e-3)


def test_the_likeliest_tokens() -> None:
    counts = np.array([0, 3, 0, 5, 3, 0], np.int64)
    assert [likeliest(counts, most).tolist() for most in (1, 2, 4, 6)] == [[3], [1, 3], [0, 1, 3, 4], list(range(6))]


@pytest.mark.parametrize("kv_type", ["int16", "int8"])
@pytest.mark.parametrize("case", ["mimo", "qwen3.5-moe", "deepseek-v3"])
def test_int4(case: str, kv_type: str, tmp_path: Path) -> None:
    """With the service's types: drafts do not depend on chunks and neighbours, and are near the reference's."""
    reference, folder = packed(case, tmp_path, qtype="int8", method="rtn", group_size=32)
    ids = parity.prompt()
    options: dict[str, Any] = {"predicts": True, "compute_type": "int8", "kv_type": kv_type}
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


def test_refusals(tmp_path: Path) -> None:
    parity.random_model("Qwen2", tmp_path / "m", **DENSE)
    byte_tokenizer().save(str(tmp_path / "m/tokenizer.json"))
    convert(tmp_path / "m", tmp_path / "packed", qtype="fp32", progress=False)
    with pytest.raises(ValueError, match="predicts: the model has no layer of multi-token prediction"):
        Sequences(tmp_path / "packed", sequences=1, predicts=True)
    with pytest.raises(ValueError, match="does not predict"):
        draft(Sequences(tmp_path / "packed", sequences=1), {0: (0, 1)})
