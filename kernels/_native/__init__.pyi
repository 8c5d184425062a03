"""The native engine as Python sees it.

Arrays are C-contiguous NumPy arrays; the GIL is released while they are used.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]

Scores = tuple[F32, I32, F32]
"""Log-probabilities [n] of tokens under the logits as the model gives them (temperature 1, before penalties, bias and
mask), then the likeliest tokens [n, k] in their places and their log-probabilities [n, k]."""

PAGE_TOKENS: int
"""Tokens of a page."""
KV_TYPES: tuple[str, ...]
"""The types in which pages can store keys and values: "int16", "bf16", "int8", "fp32"."""
TILE_OUTPUTS: int
"""Outputs of a tile of a packed matrix."""

class PackedFileError(ValueError):
    """A packed model's file is damaged or not one; the message names file, tensor and reason."""

def available_tiers() -> list[str]:
    """Tiers that this CPU and OS support, lowest first.

    They are "scalar", "avx2", "avx_vnni", "avx512" (without VNNI), "avx512_vnni" and "amx_int8".
    """

def default_tier() -> str:
    """The best tier, or the one that REDOUBT_ISA names. Raises ValueError for one that is not there."""

def cpu_model() -> str:
    """The processor's name, as CPUID gives it."""

def is_intel_cpu() -> bool:
    """Whether CPUID names Intel as the processor's vendor."""

def may_bind_memory() -> bool:
    """Whether the system calls that bind memory to NUMA nodes are allowed: containers often refuse them."""

def bind_memory_to_node(node: int) -> None:
    """Sets the calling process' memory policy (set_mempolicy, MPOL_BIND) to one NUMA node. Raises OSError."""

def interleave_memory(nodes: Sequence[int]) -> None:
    """Sets the calling process' memory policy to MPOL_INTERLEAVE over NUMA nodes. Raises OSError."""

# --- what the machine can do at most ------------------------------------------------------------------

def measure_compute(threads: int, cpus: Sequence[int]) -> dict[str, float]:
    """Peak rates of the pinned threads together, the best of short bursts, operands in registers.

    0.0 where the instruction is missing.
    maddubs_macs_per_s, vnni_macs_per_s, amx_int8_macs_per_s, amx_bf16_macs_per_s, fma_fp32_macs_per_s.
    """

def sustained_macs_per_s(instruction: str, duration_s: float, threads: int, cpus: Sequence[int]) -> float:
    """The rate that lasts: the median of the second half of about `duration_s`.

    instruction: a name of measure_compute's without "_macs_per_s". Raises ValueError if the CPU lacks it.
    """

def time_read(
    bytes: int,  # noqa: A002
    repeats: int,
    cold_bytes: int,
    huge_pages: bool,
    threads: int,
    cpus: Sequence[int],
) -> list[tuple[float, float]]:
    """Streaming reads of `bytes` by pinned threads, going round through cold_bytes of memory.

    Returns for each pass its wall seconds and the CPU seconds of the thread that took most.
    """

# --- packing: used by quant.packed only --------------------------------------------------------------

def packed_bytes(weight_type: str, rows: int, cols: int, group: int) -> int:
    """Bytes of a packed matrix (layout: contract/packed_matrix.h). ValueError for a shape the layout can't hold."""

def pack_int4(codes: U8, scales: NDArray[np.float16], minima: NDArray[np.float16] | None) -> U8:
    """Packs codes [rows, cols] in 0..15, scales and minima [rows, cols // group] to [tiles, tile_bytes].

    Minima make it an asym_int4 matrix. Codes of lut4 are packed like those of sym_int4. Raises ValueError naming the
    argument that does not fit.
    """

def pack_int8(codes: U8, scales: NDArray[np.float16]) -> U8:
    """Packs codes [rows, cols] = q + 128 in 1..255, scales [rows, cols // group] to [tiles, tile_bytes].

    Raises ValueError naming the argument that does not fit.
    """

def pack_float(values: F32, weight_type: str) -> U8:
    """Packs values [rows, cols] to [tiles, tile_bytes] as weight_type "fp16", "bf16" or "fp32", to the nearest even.

    Raises ValueError naming the argument that does not fit.
    """

def round_group(
    weights: F32,
    wanted: F32,
    feedback: F32,
    power: F32,
    scales: F32,
    minima: F32,
    levels: F32,
    tier: str | None = None,
) -> tuple[U8, F32, I32]:
    """Rounds a group's inputs one after the other with each candidate, and keeps the one with the least error.

    weights, wanted: [inputs, rows]; wanted has the compensation for errors of earlier groups. feedback: [inputs,
    inputs], by the later input, how much of each earlier one's error it makes up for. power: [inputs]. scales, minima:
    [candidates, rows]. levels: 16, rising; values are scale * level + minimum. Returns codes [inputs, rows], errors
    (weights less values) [inputs, rows], and [1, rows] the candidates. Contract: contract/kernel_table.h. Raises
    ValueError naming the argument that does not fit.
    """

def descend_group(
    codes: U8, pull: F32, own: F32, scales: F32, minima: F32, levels: F32, tier: str | None = None
) -> tuple[U8, F32]:
    """Gives each input of a group in turn its best code while the others stay.

    codes, pull: [inputs, rows], pull is minus half the error's gradient. own: the inputs' moments [inputs, inputs].
    scales, minima: [rows]. Returns the codes and how much the values changed, both [inputs, rows]. Raises ValueError.
    """

class PackedMatrix:
    """A packed matrix in memory: what linear layers multiply by. Checked once, when it is made; never changes.

    It keeps `packed` alive and copies nothing. Threads may share it.
    """

    def __init__(
        self,
        packed: object,
        weight_type: str,
        rows: int,
        cols: int,
        group: int,
        table: Sequence[int] | None = None,
    ) -> None:
        """A matrix of `rows` outputs and `cols` inputs, packed as contract/packed_matrix.h says.

        packed: uint8 [tiles, tile_bytes], C-contiguous; an array or anything else that speaks DLPack in the
        processor's memory, torch's tensors too.
        weight_type: "sym_int4", "asym_int4", "lut4", "int8", "fp16", "bf16" or "fp32".
        group: inputs that share a scale, 32, 64 or 128; 0 for floats.
        table: the 16 integers in -127..127 of lut4, and of no other type.
        Raises ValueError naming the argument that does not fit; TypeError where `packed` is no such array.
        """

    @property
    def weight_type(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def table(self) -> tuple[int, ...] | None: ...
    @property
    def nbytes(self) -> int:
        """Bytes of `packed`."""

    def dequantize(self, tier: str | None = None) -> F32:
        """The weights [rows, cols], computed by `tier`'s kernel, by default the best one's.

        Raises ValueError for a tier that is not there.
        """

class LinearRunner:
    """Linear layers over packed matrices, on a thread pool of its own; calls from several threads take turns.

    Arrays are anything that speaks DLPack in the processor's memory, torch's tensors too; nothing is copied.
    """

    def __init__(self, threads: int, cpus: Sequence[int] = ...) -> None:
        """cpus: one for each thread, or none. Raises ValueError, and OSError for a CPU that can't be had."""
    def run(
        self,
        matrix: PackedMatrix,
        x: object,
        y: object,
        *,
        bias: object | None = None,
        activations: str = "int8",
    ) -> None:
        """Writes y [batch, rows] = x [batch, cols] W^T + bias [rows], all fp32.

        x, y: contiguous along the last dimension, rows at any distance. The matrix must begin at a multiple of 64
        bytes.
        activations: "int8" (by group), "int8_two_terms" or "fp32", the only one for weights of floats. Raises
        ValueError naming what does not fit, TypeError for arrays of another type or number of dimensions.
        """

# --- running ----------------------------------------------------------------------------------------------

class Sampler:
    """One request's sampling state: options, seed and the tokens seen (sampling/sampler.h has the order)."""

    def __init__(
        self,
        *,
        vocab_size: int,
        prompt: Sequence[int],
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] = ...,
        seed: int = 0,
        min_tokens: int = 0,
        end_tokens: Sequence[int] = ...,
        logprobs: int = -1,
        candidates: int = 0,
        penalize_logprobs: bool = False,
    ) -> None:
        """min_tokens: none of end_tokens can be drawn before this many tokens. logprobs: scores are kept if at least 0.

        candidates: if above 0, the sampler is a search's. It draws nothing; `take_scores` gives this many of the
        likeliest tokens of a row, after penalties, bias and masks. penalize_logprobs: penalties and bias change
        log-probabilities, as in transformers' beam search, and not logits. Raises ValueError naming the option that
        does not fit.
        """

    def sample(self, logits: F32) -> int:
        """Draws one token from logits [vocab_size] (not modified) and remembers it."""

    def remember(self, tokens: Sequence[int]) -> None:
        """Goes on as if it had just drawn these tokens. Raises ValueError for one outside the vocabulary."""

    def after(self, token: int) -> Sampler:
        """A sampler that goes on as if this one had just drawn `token`; this one stays as it is."""

    def masks(self, rows: int) -> NDArray[np.uint32]:
        """[rows, ceil(vocab_size / 32)], a writable view: bit t % 32 of word t // 32 is 0 where token t can't be drawn.

        The next draw takes the first row, and so on; the last row holds for all that follow.
        """

    def set_masked(self, masked: bool) -> None:
        """Whether `masks` hold for the next draws."""

    def take_scores(self) -> Scores:
        """Scores of the tokens drawn since the last call; empty unless logprobs is at least 0."""

class PromptReader:
    """Reads a prompt's hidden states or logits during `Model.step`; the subclasses say what for."""

class PromptScorer(PromptReader):
    """Scores every prompt token but the first, given those before it."""

    def __init__(self, *, vocab_size: int, prompt: Sequence[int], top: int) -> None: ...
    def scores(self) -> Scores:
        """Of prompt tokens 1, 2, ...; complete when all steps of the prompt have been made."""

class PromptEmbedder(PromptReader):
    """One vector for a prompt: the "mean" of its hidden states after the final norm, or the "last" of them."""

    def __init__(self, *, hidden_size: int, prompt_tokens: int, pooling: str) -> None: ...
    def embedding(self) -> F32:
        """[hidden_size], not normalized; complete when all steps of the prompt have been made."""

class HiddenHistory:
    """A text's hidden states after the final norm, each scaled to length 1 (contrastive search)."""

    def __init__(self, *, hidden_size: int) -> None: ...
    @property
    def tokens(self) -> int:
        """Number of states."""

class HistoryWriter(PromptReader):
    """Appends a prompt's states to the history, except those that it has already."""

    def __init__(self, history: HiddenHistory) -> None: ...

class CandidateReader(PromptReader):
    """Compares the state of the token after the history with it."""

    def __init__(self, history: HiddenHistory) -> None: ...
    @property
    def similarity(self) -> float:
        """The largest cosine similarity with a state of the history."""

    def choose(self) -> None:
        """Appends the state that was read to the history. Raises RuntimeError if there is none."""

class ModelFiles(Protocol):
    """The files of a model that is no folder of the file system. Its `str` names it in messages.

    Called from the threads of the model that is being loaded, several at once. What it raises, loading raises.
    """

    def size(self, name: str, /) -> int:
        """Bytes of a file."""
    def read_into(self, name: str, offset: int, buffer: memoryview, /) -> None:
        """Fills the buffer with the file's bytes from `offset` on. The buffer is not kept."""

class Model:
    """A packed model on a pinned thread pool, with its KV pages. Not thread-safe: one step at a time."""

    def __init__(
        self,
        folder: str | ModelFiles,
        *,
        threads: int,
        cpus: Sequence[int] = ...,
        compute_type: str = "int8",
        prompt_compute_type: str = "same",
        kv_type: str = "auto",
        weight_memory: str = "auto",
        nodes: Sequence[int] = ...,
        bind_weights: bool = True,
        kv_pages: int,
        max_sequences: int,
        max_step_tokens: int,
        max_context_tokens: int,
        page_groups: bool = False,
        state_pages: int = 0,
        predicts: bool | str = False,
    ) -> None:
        """Loads the model.safetensors of `folder`, whose header describes the model; no other file is read.

        Raises PackedFileError, ValueError naming the argument, OSError.

        compute_type: activations as "int8" (by group), "bf16" (needs AMX), "auto" (bf16 with AMX, else int8) or "fp32".
        kv_type: "int16", "bf16", "int8" or "fp32"; "auto" as chosen_kv_type has it.
        prompt_compute_type: of prompts' tokens, the "same", or "bf16", in attention too, which needs AMX; "auto" is the
        faster of the two.
        weight_memory: "mapped" uses the file's own pages, which processes share; "huge_pages" copies it into memory
        of its own; "auto" is the better of the two on this machine (weights/weight_memory.h). ModelFiles are always
        copied.
        nodes: each thread's NUMA node, where the engine spans several: every node's threads compute output tiles of
        their own, whose weights, if copied, lie on their node (weights/node_slices.h); bind_weights: by mbind(2).
        kv_pages: pages of PAGE_TOKENS tokens. state_pages: of a model with states, at least 1; others ignore it.
        max_step_tokens: the most tokens of one step.
        predicts: whether the model's layer of multi-token prediction is used, for `draft`; or the folder of an EAGLE-3
        head, which is loaded with the model. Its keys are one more layer's, in every page.
        """

    @property
    def tier(self) -> str: ...
    @property
    def attention_tier(self) -> str:
        """The tier whose kernels write and read keys and values: "scalar" where heads don't fill a vector."""
    @property
    def kv_type(self) -> str:
        """The type of the pages; never "auto"."""
    @property
    def has_bf16_prompts(self) -> bool:
        """Whether prompts are computed with prompt_compute_type bf16."""
    @property
    def weight_memory(self) -> str:
        """Where the weights are: "mapped" or "huge_pages"."""
    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def page_table(self) -> I32:
        """[max_sequences, ceil(max_context_tokens / PAGE_TOKENS)], written by the caller: a view.

        With page_groups or states [groups, max_sequences, ...]: a page belongs to one group. Entries before all that a
        step's tokens see of a group (its window) are not read.

        States are the last group, and its entries are numbers of state pages. A step that computes tokens begin .. end
        reads the page before that of `begin`, and writes those of its tokens. Entries of pages that are wholly computed
        in the step may be -1, which keeps nothing: but not the last token's, nor the one before it if the last page
        does not get full. A page that a step writes stands at one place only. ValueError names what is wrong.
        """

    @property
    def group_windows(self) -> list[int]:
        """[groups]: how many keys a token of the group's layers sees, itself included; 0: all.

        States are the last group, with 2: behind n full pages, page n - 1 and later ones are needed.
        """

    @property
    def is_encoder(self) -> bool:
        """Whether it computes whole sequences, in `encode`."""

    @property
    def has_states(self) -> bool:
        """Whether some layers are Gated DeltaNet, which keep a state of a sequence rather than keys and values."""

    @property
    def predicts(self) -> bool:
        """Whether it was loaded with its layer of multi-token prediction, or an EAGLE-3 head."""

    @staticmethod
    def has_predictor(folder: str | ModelFiles) -> bool:
        """Whether a model has a layer of multi-token prediction, before loading. Raises PackedFileError, OSError."""
    @staticmethod
    def kv_page_bytes(
        folder: str | ModelFiles, kv_type: str, grouped_context_tokens: int | None = None, predicts: bool | str = False
    ) -> int:
        """Bytes of one page, to size kv_pages before loading. kv_type: not "auto".

        grouped_context_tokens: max_context_tokens of a model with page_groups; None: a page is of all layers.
        """
    @staticmethod
    def page_group_windows(
        folder: str | ModelFiles, max_context_tokens: int, predicts: bool | str = False
    ) -> list[int]:
        """`group_windows` of a model with page_groups, before loading."""
    @staticmethod
    def state_page_bytes(folder: str | ModelFiles) -> int:
        """Bytes of one page of states, to size state_pages before loading; 0 for a model without states.

        Raises PackedFileError, OSError.
        """
    @staticmethod
    def experts(folder: str | ModelFiles) -> tuple[int, int]:
        """(experts of a layer, how many a token takes), before loading; (0, 0) for a model without any.

        Raises PackedFileError, OSError.
        """
    @staticmethod
    def activation_bytes(
        folder: str | ModelFiles,
        *,
        threads: int,
        max_sequences: int,
        max_step_tokens: int,
        predicts: bool | str = False,
    ) -> int:
        """Bytes of what a step works in, at most, before loading. Raises PackedFileError, OSError."""
    @staticmethod
    def chosen_kv_type(folder: str | ModelFiles, kv_type: str, compute_type: str, prompt_compute_type: str) -> str:
        """What "auto" stands for: "bf16" where prompt_compute_type makes prompts' attention that, else "int16".

        Other types are returned as they are. Raises ValueError naming the option that is unknown or can't be had,
        PackedFileError, OSError.
        """

    @overload
    def step(
        self,
        token_ids: I32,
        positions: I32,
        slots: I32,
        query_lengths: I32,
        context_lengths: I32,
        samplers: Sequence[Sampler | None],
        readers: Sequence[PromptReader | None],
        draft_lengths: I32 | None,
        prompts: int,
        interrupt: I32,
    ) -> I32 | None: ...
    @overload
    def step(
        self,
        token_ids: I32,
        positions: I32,
        slots: I32,
        query_lengths: I32,
        context_lengths: I32,
        samplers: Sequence[Sampler | None],
        readers: Sequence[PromptReader | None] = (),
        draft_lengths: I32 | None = None,
        prompts: int = 0,
        interrupt: None = None,
    ) -> I32:
        """Runs one step: forward over a ragged batch, then sampling. One native call, GIL released.

        token_ids, positions: [T], the sequences' new tokens one after another, and their RoPE positions.
        slots: [S] row of page_table of each sequence. query_lengths: [S] its new tokens (sum T).
        context_lengths: [S] keys it has *before* this step; new ones are stored from there on.
        samplers: [S]; where not None, the logits of the sequence's last new token are computed and sampled.
        readers: [S] or none; where not None, it gets the rows of the prompt that it wants.
        draft_lengths: [S] how many of a sequence's last new tokens are guesses. Its sampler then samples from the row
        before the first guess, and from each guess' row as long as the guess was what had just been sampled.
        prompts: how many of the last sequences compute tokens of their prompt; those of all others are output.
        interrupt: [1]; once another thread has made it other than 0, the step ends at its next layer and returns None.
        Nothing was sampled or read then, and the same step can be computed again.
        Returns [S + sum of draft_lengths] token ids, a sequence's own and then those after its guesses; -1 where there
        is no sampler, or a guess before was wrong. Raises ValueError naming the array that does not fit.
        """

    def draft(
        self,
        token_ids: I32,
        positions: I32,
        slots: I32,
        context_lengths: I32,
        depth: int,
        samplers: Sequence[Sampler | None] = (),
    ) -> tuple[I32, NDArray[np.float32]]:
        """Drafts the next tokens of sequences with the predictor's layer or the head, GIL released.

        token_ids, positions: [S] each sequence's last token, which no step has computed, and its RoPE position; or the
        last draft of the call before. slots: [S]. context_lengths: [S] the tokens before it: the last of them was
        computed by the slot's last step, or drafted since then. depth: how many tokens; 16 behind a text at most.
        samplers: [S] or none; where not None, it draws the drafts.
        Returns ([S, depth] tokens, [S, depth] their probabilities by this layer, each given those before); -1 and 0
        where the slot's last step was another sequence's or ended elsewhere. What steps read stays as it is. Raises
        ValueError naming the array that does not fit, or for a model without `predicts`.
        """

    def logits(self, token_ids: I32, positions: I32, slots: I32, query_lengths: I32, context_lengths: I32) -> F32:
        """The same forward pass, all tokens as a prompt's; returns every new token's logits [T, vocab_size]."""

    def layer_activations(
        self, hidden: F32, positions: I32, slots: I32, query_lengths: I32, wanted: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """Runs new sequences through all layers and returns activations of the last one, fp32 rows of the T tokens.

        hidden: [T, hidden_size], what the first layer gets. The rest as in `step`. wanted, of which what comes after
        the last is not computed: "attention_input", "output_input", "attention_output" (the residual stream after
        attention; or what attention adds to it, before a norm of its own), "mlp_input", "pairs", "down_input",
        "shared_down_input", "mlp_output" (likewise), "hidden" (after the layer). With experts, "down_input" has a row
        for each token and expert that it takes, by expert and then by token; "pairs" is that list, int32
        [T * per_token, 2]: token, expert. Raises ValueError naming the array that does not fit.
        """

    def hidden_states(
        self, token_ids: I32, positions: I32, slots: I32, query_lengths: I32, context_lengths: I32
    ) -> F32:
        """The same; returns [layers + 2, T, hidden_size]: embeddings, layers' outputs, final norm."""

    def encode(
        self,
        token_ids: I32,
        positions: I32,
        query_lengths: I32,
        first_layer: int = 0,
        end_layer: int = 0,
        first_row: int = 0,
        end_row: int = 0,
        keys: bool = False,
    ) -> F32 | None:
        """Computes whole sequences with an encoder; returns the last layer's output [T, hidden_size], normalized.

        first_layer, end_layer: only these layers, of which the first one's input is what the call before this one has
        left of the same batch; 0 as the end: all. first_row, end_row: of one layer only these tokens, of all sequences
        one after another: with `keys` what others see of them, and without, once that is done for all tokens, the rest.
        Before the last layer's last tokens it returns None. The page table is not read.
        """

    def copy_page(self, source: int, target: int) -> None:
        """Copies one page over all layers (copy-on-write)."""

    def copy_state_page(self, source: int, target: int) -> None:
        """Copies one page of states over all layers. Raises ValueError for a page that is not there."""

    def clear_state_page(self, page: int) -> None:
        """As clear_page, for a page of states."""

    @property
    def has_relative_positions(self) -> bool:
        """Whether keys can be moved to other positions.

        Not with states, nor with dynamic RoPE, whose frequencies depend on positions.
        """

    def copy_page_turned(self, source: int, target: int, positions: int) -> None:
        """Copies one page over all layers, its keys as if their tokens stood so many positions later.

        Exact but for rounding: to the type of the cache, once more than the source was.
        """

    @property
    def gathered_page_bytes(self) -> int:
        """Bytes of a gathered page: those of a page, and the words that say its shape (model/kv_page.h)."""

    def gather_page(self, page: int, out: U8) -> None:
        """Writes one page over all layers to `out`, uint8 [gathered_page_bytes], with the GIL released.

        ValueError for a model with states, whose pages are not enough to go on from; so does scatter_page.

        Any thread may call it, during a step too, for a page that no step writes. Raises ValueError for a page that is
        not there or another size, TypeError for an array of another kind.
        """

    def scatter_page(self, page: int, gathered: U8) -> None:
        """Replaces one page by what `gather_page` wrote, with the GIL released.

        Any thread may call it, during a step too, for a page that no step uses. Raises ValueError for a page that is
        not there, another size, shape or type: then nothing was written.
        """

    def clear_page(self, page: int) -> None:
        """Overwrites one page, which no step uses, with zeros. Raises ValueError for a page that is not there."""

    def forget_slot(self, slot: int) -> None:
        """Overwrites what drafts of the slot's sequence need, which leaves it: hidden states, and the page for drafts.

        Does nothing if the model doesn't predict. Raises ValueError for a slot that is not there.
        """

    def release_memory(self) -> None:
        """Gives the memory of keys, values, states, activations and mapped weights back to the system.

        The next step takes what it needs again. What pages held is lost.
        """

    def resident_bytes(self) -> dict[str, int]:
        """Bytes by owner: weights, kv, states, activations."""

    def start_profile(self) -> None:
        """Records from now on where the time of steps goes, from zero on. Raises RuntimeError during a step."""

    def stop_profile(self) -> None:
        """Ends that; `profile` keeps what was recorded. A step that is not recorded pays nothing for it."""

    def profile(self) -> dict[str, tuple[int, dict[str, tuple[float, float, float]]]]:
        """What was recorded, as the first thread sees it: steps, and seconds of each stage.

        The keys are "prompt", for steps that read at least one prompt, and "decode", for the others. Of a stage:
        all its seconds, those in matrix products, and those in which the thread waited for others.
        """
