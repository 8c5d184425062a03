"""What the next worker is asked for."""

from app.controller.unfinished import UnfinishedOutput
from app.messages.outputs import Loss, TokenDelta
from app.messages.requests import BeamParams, GenerateRequest


def output(search: BeamParams | None = None) -> UnfinishedOutput:
    return UnfinishedOutput(GenerateRequest("r", (1, 2), 9, tenant=b"", search=search, model_identity="abc"))


def test_the_rest_says_how_the_last_tokens_were_computed() -> None:
    unfinished = output()
    assert unfinished.rest().resumed_arithmetic == ""
    unfinished.add(TokenDelta((), arithmetic="avx2 int8"))
    unfinished.lost(Loss.LOST)
    assert unfinished.rest().resumed_arithmetic == ""  # it has made no token
    unfinished.add(TokenDelta((5,), arithmetic="amx int8"))
    unfinished.add(TokenDelta((6,)))
    unfinished.lost(Loss.LOST)
    rest = unfinished.rest()
    assert (rest.resumed_token_ids, rest.resumed_arithmetic, rest.model_identity) == ((5, 6), "amx int8", "abc")
    unfinished.add(TokenDelta((7,)))  # of a worker that has not told
    unfinished.lost(Loss.MOVED)
    assert unfinished.rest().resumed_arithmetic == ""


def test_a_search_that_begins_again_may_do_so_anywhere() -> None:
    unfinished = output(BeamParams(2))
    unfinished.rest()
    unfinished.add(TokenDelta((5,), arithmetic="amx int8"))
    unfinished.lost(Loss.LOST)
    rest = unfinished.rest()
    assert (rest.resumed_token_ids, rest.resumed_arithmetic, rest.model_identity) == ((), "", "abc")
