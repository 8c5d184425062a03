"""GGUFs of BERT and NomicBERT give what the original folders do: tensors, pooling, and the tokens of texts."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from bench.bert_gguf import write_bert_gguf
from quant.codes.dequantize import dequantize
from quant.codes.matrix import QuantizedMatrix
from quant.errors import UnsupportedModelError
from quant.sources.open_source import open_source
from quant.sources.source import Source
from tests.app.encoder import tokenizer_json
from tests.quant.checkpoints import write_hf_folder
from tests.quant.encoder_checkpoints import BERT, ENCODER, write_encoder_folder

NOMIC: dict[str, Any] = {
    "model_type": "nomic_bert", "architectures": ["NomicBertModel"], "vocab_size": 320, "n_embd": 64, "n_inner": 96,
    "n_head": 4, "n_layer": 2, "n_positions": 128, "activation_function": "swiglu", "type_vocab_size": 2,
    "rotary_emb_base": 1000,
}  # fmt: skip
_LAYER = {
    "attn.Wqkv": ("attn_qkv", (192, 64)), "attn.out_proj": ("attn_output", (64, 64)),
    "norm1": ("attn_output_norm", (64,)), "mlp.fc11": ("ffn_up", (96, 64)), "mlp.fc12": ("ffn_gate", (96, 64)),
    "mlp.fc2": ("ffn_down", (64, 96)), "norm2": ("layer_output_norm", (64,)),
}  # fmt: skip
_TOP = {
    "embeddings.word_embeddings": ("token_embd", (320, 64)),
    "embeddings.token_type_embeddings": ("token_types", (2, 64)), "emb_ln": ("token_embd_norm", (64,)),
}  # fmt: skip
"""The published modules: the GGUF's names, and shapes."""


def _values(source: Source, name: str) -> Any:
    tensor = source.tensors[name]
    values = tensor.read(0, tensor.shape[0])
    return dequantize(values) if isinstance(values, QuantizedMatrix) else values


def _same(ours: Source, theirs: Source, error: float) -> None:
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert ours.decoder == theirs.decoder
    assert ours.config[ENCODER] == theirs.config[ENCODER]
    for name in theirs.tensors:
        expected = _values(theirs, name)
        assert np.abs(_values(ours, name) - expected).max() <= error * np.abs(expected).max(), name


def test_bert(tmp_path: Path) -> None:
    folder = write_encoder_folder(tmp_path / "bert", {}, {**BERT, "layer_norm_eps": 1e-12})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json() | {"truncation": None}))
    write_bert_gguf(folder, tmp_path / "bert.gguf")
    ours = open_source(tmp_path / "bert.gguf")
    _same(ours, open_source(folder), 1 / 254 + 2**-11)  # half a code, and the scale as fp16
    ours.write_tokenizer(tmp_path)
    written, original = (Tokenizer.from_file(str(each / "tokenizer.json")) for each in (tmp_path, folder))
    for pair in (("The Older fox, is", None), ("[SEP] old dog", "fox: ist")):
        one, other = written.encode(*pair), original.encode(*pair)
        assert (one.ids, one.type_ids) == (other.ids, other.type_ids)


def test_nomic_bert(tmp_path: Path) -> None:
    rng, writer, stored = np.random.default_rng(0), _writer(tmp_path / "nomic.gguf"), {}
    places = {"": _TOP} | {f"encoder.layers.{number}.": _LAYER for number in range(NOMIC["n_layer"])}
    for number, (prefix, modules) in enumerate(places.items(), -1):
        for name, (theirs, shape) in modules.items():
            for kind in ("weight", "bias") if len(shape) == 1 else ("weight",):
                values = stored[f"{prefix}{name}.{kind}"] = rng.normal(0, 0.1, shape).astype(np.float32)
                writer.add_tensor(f"{f'blk.{number}.' if prefix else ''}{theirs}.{kind}", values)
    folder = write_hf_folder(tmp_path / "nomic", stored, NOMIC)
    _finish(writer)
    _same(open_source(tmp_path / "nomic.gguf"), open_source(folder), 0.0)


def test_what_an_encoder_of_llama_cpp_may_be_and_ours_may_not(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "rank.gguf", pooling=gguf.PoolingType.RANK)
    writer.add_tensor("token_embd.weight", np.zeros((320, 64), np.float32))
    _finish(writer)
    with pytest.raises(UnsupportedModelError, match="pooling_type 4"):
        open_source(tmp_path / "rank.gguf")


def _writer(path: Path, pooling: gguf.PoolingType = gguf.PoolingType.MEAN) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, "nomic-bert")
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_rope_freq_base(1000.0)
    writer.add_pooling_type(pooling)
    return writer


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
