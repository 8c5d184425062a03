"""The encoder's engine over a model that adds numbers: batches, callers' turns, pieces, errors and aborts."""

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.encoding.encoder import Encoder
from app.engine.encoding.head import ACTIVATIONS, DenseLayer, Head
from app.engine.encoding.pieces import ALONE_S, LEAST_ROWS, SHARE, Piece, Pieces
from app.engine.encoding.text_queue import Job, TextQueue
from app.messages.failures import EngineError, EngineFailedError, EngineStoppedError, InvalidRequestError
from app.messages.requests import GenerateRequest, Priority, Texts

F32 = NDArray[np.float32]
HEAD = Head("mean", normalized=False)
TIMEOUT_S = 60


class AddingModel:
    """Final hidden states are the tokens themselves, once for each layer; a batch may be held up, or fail."""

    layers, vocab_size, max_tokens, max_step_tokens, usual_step_tokens, max_sequences = 3, 100, 16, 16, 16, 8

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], Piece]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.has_begun = threading.Event()
        self.fails = False
        self.released = 0

    def encode(self, token_ids: Any, second: Any, lengths: Any, piece: Piece) -> F32 | None:
        self.has_begun.set()
        assert self.may_go_on.wait(TIMEOUT_S)
        if self.fails:
            raise RuntimeError("no")
        self.calls.append((lengths.tolist(), piece))
        if piece.end_layer < self.layers:
            return None
        return np.stack([token_ids, second.repeat(lengths)], axis=1).astype(np.float32)

    def release_memory(self) -> None:
        self.released += 1


@pytest.fixture
def model() -> AddingModel:
    return AddingModel()


@pytest.fixture
def encoder(model: AddingModel) -> Iterator[Encoder]:
    encoder = Encoder(model, HEAD)
    encoder.start()
    yield encoder
    model.may_go_on.set()
    encoder.stop()


def request(*texts: Sequence[int], tenant: bytes = b"", priority: Priority = Priority.NORMAL) -> GenerateRequest:
    ids = np.array([token for text in texts for token in text], np.int32)
    lengths = np.array([len(text) for text in texts], np.int32)
    return GenerateRequest(
        request_id="r", prompt_token_ids=(), max_new_tokens=0, texts=Texts(ids, lengths, lengths), tenant=tenant,
        priority=priority,
    )  # fmt: skip


class Result:
    """What was delivered of one request."""

    def __init__(
        self, encoder: Encoder, asked: GenerateRequest, order: list[str] | None = None, name: str = ""
    ) -> None:
        self._done = threading.Event()
        self.value: F32 | EngineError | None = None
        self._order, self._name = order, name
        self.abort = encoder.submit(asked, self._put)

    def _put(self, value: F32 | EngineError) -> None:
        self.value = value
        if self._order is not None:
            self._order.append(self._name)
        self._done.set()

    def get(self) -> Any:
        assert self._done.wait(TIMEOUT_S)
        if isinstance(self.value, EngineError):
            raise self.value
        return self.value


def test_each_text_gets_its_own_vector(encoder: Encoder, model: AddingModel) -> None:
    texts = [[1, 3], [5], [7, 7, 10], *([number] * 9 for number in range(20))]
    found = Result(encoder, request(*texts)).get()
    np.testing.assert_allclose(found[:, 0], [np.mean(text) for text in texts])
    np.testing.assert_allclose(found[:, 1], [len(text) for text in texts])
    batches = [lengths for lengths, piece in model.calls if piece.first_layer == 0]
    assert all(sum(lengths) <= 16 for lengths in batches)
    assert batches[0] == [2, 1, 3, 9]


def test_callers_take_turns_and_batches_come_last(encoder: Encoder, model: AddingModel) -> None:
    model.may_go_on.clear()
    order: list[str] = []
    long = [[1] * 16] * 4
    results = [Result(encoder, request([9] * 16), order, "first")]
    assert model.has_begun.wait(TIMEOUT_S)
    results.append(Result(encoder, request(*long, tenant=b"b", priority=Priority.BATCH), order, "batch"))
    results.append(Result(encoder, request(*long, tenant=b"a"), order, "long"))
    results.append(Result(encoder, request([2], tenant=b"c"), order, "short"))
    model.may_go_on.set()
    for each in results:
        each.get()
    assert order == ["first", "short", "long", "batch"]


def test_nothing_is_delivered_of_an_aborted_request(encoder: Encoder, model: AddingModel) -> None:
    model.may_go_on.clear()
    first = Result(encoder, request([1]))
    assert model.has_begun.wait(TIMEOUT_S)
    second = Result(encoder, request([2]))
    second.abort()
    first.abort()
    model.may_go_on.set()
    Result(encoder, request([3])).get()
    assert first.value is second.value is None


def test_a_failed_batch_fails_its_requests_and_three_end_the_engine(encoder: Encoder, model: AddingModel) -> None:
    model.fails = True
    for _ in range(3):
        assert encoder.healthy
        with pytest.raises(EngineFailedError):
            Result(encoder, request([1])).get()
    encoder.stop()
    with pytest.raises(EngineStoppedError):
        encoder.check()
    with pytest.raises(EngineStoppedError):
        Result(encoder, request([1]))


def test_what_does_not_fit_is_refused(encoder: Encoder) -> None:
    for wrong, message in (
        (request([1] * 17), "longer than this model's 16"),
        (request([]), "empty"),
        (request([100]), "vocabulary"),
        (request([-1]), "vocabulary"),
        (GenerateRequest(request_id="r", prompt_token_ids=(1,), max_new_tokens=1, tenant=b""), "makes no text"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            Result(encoder, wrong)


def test_a_stop_ends_what_waits(encoder: Encoder, model: AddingModel) -> None:
    model.may_go_on.clear()
    running, waiting = Result(encoder, request([1])), Result(encoder, request([2]))
    assert model.has_begun.wait(TIMEOUT_S)
    stopping = threading.Thread(target=encoder.stop)
    stopping.start()
    while encoder.healthy:  # it would compute the second one before it hears of the stop
        pass
    model.may_go_on.set()
    stopping.join()
    with pytest.raises(EngineStoppedError):
        waiting.get()
    assert running.value is not None


def test_memory_is_given_back_only_when_nobody_asks(encoder: Encoder, model: AddingModel) -> None:
    assert encoder.release_memory().result(TIMEOUT_S)
    model.may_go_on.clear()
    asked = Result(encoder, request([1]))
    assert model.has_begun.wait(TIMEOUT_S)
    releasing = encoder.release_memory()
    waiting = Result(encoder, request([2]))
    model.may_go_on.set()
    assert not releasing.result(TIMEOUT_S)
    asked.get()
    waiting.get()
    assert model.released == 1


def test_every_piece_is_a_turn(model: AddingModel) -> None:
    taken = 0

    class Turns:
        def __enter__(self) -> None:
            nonlocal taken
            taken += 1

        def __exit__(self, *_: object) -> None: ...

    encoder = Encoder(model, HEAD, turns=Turns())
    encoder.start()
    Result(encoder, request([1])).get()
    encoder.stop()
    assert taken == len(model.calls)
    assert model.calls[0] == ([1], Piece(0, 1)), "nothing is known of the time yet"


def test_pieces_are_a_share_of_others_steps() -> None:
    pieces = Pieces(layers=6, most_tokens=512)
    first = pieces.after(None, 512, 0.0)
    assert first == Piece(0, 1)
    pieces.computed(first, 512, 0.004)
    assert pieces.tokens(1.0) == 512
    assert pieces.after(first, 512, 1.0) == Piece(1, 6)  # five layers of 4 ms
    pieces.waited(0.008, 2.0)
    assert pieces.seconds(2.0) == pytest.approx(SHARE * 0.008)
    assert pieces.tokens(2.0) == int(SHARE * 0.008 / (0.004 / 512))
    assert pieces.after(first, 200, 2.0) == Piece(1, 2)
    assert pieces.after(first, 2, 2.0) == Piece(1, 6)
    pieces.waited(0.0, 2.1)
    assert pieces.seconds(2.1) < ALONE_S, "the other is between two steps"
    assert pieces.seconds(60.0) == ALONE_S


def test_a_layer_of_a_long_text_is_cut_by_tokens() -> None:
    pieces = Pieces(layers=2, most_tokens=512)
    assert pieces.after(None, 640, 0.0) == Piece(0, 1, "keys", 0, LEAST_ROWS), "nothing is known of the time yet"
    pieces.computed(Piece(0, 1), 512, 0.0512)  # 0.1 ms a token
    pieces.waited(0.034, 1.0)
    found, piece = list[Piece](), None
    while piece is None or piece.end_layer < 2 or piece.part == "keys" or piece.end_row < 300:
        found.append(piece := pieces.after(piece, 300, 1.0))
        pieces.computed(piece, 300, (piece.end_row - piece.first_row) * (1e-4 if piece.part == "rest" else 2e-5))
    assert [each.part for each in found] == ["keys", "keys", *["rest"] * 3, "keys", *["rest"] * 3]
    assert [each.end_row for each in found] == [100, 300, 100, 200, 300, 300, 100, 200, 300]
    for one, other in pairwise(found):
        assert other.first_row == (one.end_row if one.part == other.part else 0)


def test_a_text_that_is_longer_than_a_batch_is_one() -> None:
    queue = TextQueue(8)
    job = Job([30, 4, 4], b"", is_batch=False)
    queue.add(job)
    assert queue.take(10) == [(job, 0)]
    assert queue.take(10) == [(job, 1), (job, 2)]
    assert queue.take(10) == []


def test_heads() -> None:
    hidden = np.arange(12, dtype=np.float32).reshape(6, 2)
    lengths = np.array([2, 1, 3], np.int32)
    assert Head("first", normalized=False).of(hidden, lengths)[:, 0].tolist() == [0, 4, 6]
    assert Head("last", normalized=False).of(hidden, lengths)[:, 0].tolist() == [2, 4, 10]
    assert Head("mean", normalized=False).of(hidden, lengths)[:, 0].tolist() == [1, 4, 8]
    np.testing.assert_allclose(np.linalg.norm(HEAD_NORMALIZED.of(hidden, lengths), axis=1), 1, rtol=1e-6)
    dense = DenseLayer(np.array([[1, -1]], np.float32), np.array([2], np.float32), ACTIVATIONS["tanh"])
    np.testing.assert_allclose(Head("first", False, (dense,)).of(hidden, lengths), np.tanh(np.ones((3, 1))), rtol=1e-6)


HEAD_NORMALIZED = Head("mean", normalized=True)
