"""A model's sampling defaults, from its generation_config.json. A request's own values take precedence."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from app.interface.wire.fields import MinP, RepetitionPenalty, Temperature, TopK, TopP


def _or(default: float) -> BeforeValidator:
    """Replaces null, which transformers writes for unset values, by the default."""
    return BeforeValidator(lambda value: default if value is None else value)


class SamplingDefaults(BaseModel):
    """The supported fields of transformers' GenerationConfig; a missing one has no effect."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    temperature: Annotated[Temperature, _or(1.0)] = 1.0
    top_p: Annotated[TopP, _or(1.0)] = 1.0
    top_k: Annotated[TopK, _or(0)] = 0
    """0: off."""
    min_p: Annotated[MinP, _or(0.0)] = 0.0
    repetition_penalty: Annotated[RepetitionPenalty, _or(1.0)] = 1.0

    @classmethod
    def of(cls, generation_config: Mapping[str, Any]) -> Self:
        """Raises ValueError naming the field."""
        try:
            return cls.model_validate(generation_config)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"generation_config.json: {first['loc'][0]}: {first['msg']}") from error
