import pytest

from app.interface.wire.sampling_defaults import SamplingDefaults


def test_a_model_without_recommendations_has_neutral_defaults() -> None:
    assert SamplingDefaults.of({}) == SamplingDefaults(temperature=1, top_p=1, top_k=0, min_p=0, repetition_penalty=1)


def test_what_is_recommended_is_taken_and_the_rest_ignored() -> None:
    made = SamplingDefaults.of({"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": None, "eos_token_id": [1]})
    assert made == SamplingDefaults(temperature=0.6, top_k=20)


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", 3), ("top_p", 2), ("min_p", "x"), ("repetition_penalty", -1), ("top_k", 0.5)]
)
def test_a_value_out_of_range_is_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"generation_config.json: {field}: "):
        SamplingDefaults.of({field: value})
