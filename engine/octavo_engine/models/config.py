"""What the decoder must know of a model beyond its shape."""

from dataclasses import dataclass

from octavo_sizing.shape import ModelShape


class ModelNotSupportedError(ValueError):
    """The model is of a kind that the decoder would compute wrongly; says what is supported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    shape: ModelShape
    rms_norm_eps: float
    rope_dim: int  # leading dimensions of each head that are rotated

    def __post_init__(self) -> None:
        if self.rope_dim != self.shape.head_dim:
            raise ModelNotSupportedError(
                f"Only {self.rope_dim} of {self.shape.head_dim} dimensions of a head are rotated; "
                "models that rotate all of them are supported."
            )
