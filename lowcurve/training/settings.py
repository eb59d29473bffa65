"""How is a recipe trained? The section `[train]`; its defaults are the paper's, everything else is off."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Section(BaseModel):
    """A part of the configuration: unknown keys, NaN and changes after the fact are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)


class TrainConfig(Section):
    """How it is trained: SGD with the paper's schedule, whatever the number of epochs."""

    epochs: int = Field(default=200, ge=1)
    batch_size: int = Field(default=128, ge=2, description="samples per step, over all processes")
    optimizer: Literal["sgd", "adamw"] = Field(default="sgd", description="AdamW wants a smaller lr, such as 1e-3")
    lr: float = Field(default=0.1, gt=0)
    schedule: Literal["steps", "cosine"] = Field(default="steps", description="steps falls at milestones")
    warmup: float = Field(default=0.0, ge=0, lt=1, description="share of training in which lr rises to its value")
    milestones: tuple[float, ...] = Field(default=(0.75, 0.875), description="when lr falls, as shares of training")
    lr_decay: float = Field(default=0.1, gt=0, le=1, description="factor of lr at each milestone")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="of SGD; the first β of AdamW")
    weight_decay: float = Field(default=5e-4, ge=0, description="none on β and γ")
    clip_gradient: float | None = Field(default=None, gt=0, description="largest norm of the whole gradient")
    accumulate: int = Field(default=1, ge=1, description="pieces of a batch that are computed one after the other")
    label_smoothing: float = Field(default=0.0, ge=0, lt=1, description="share of a label given to all classes")
    mixup: float = Field(default=0.0, ge=0, le=100, description="α of the Beta(α, α) that mixes pairs of samples")
    ema: float = Field(default=0.0, ge=0, lt=1, description="decay of the average of weights, which is the result")
    only: Literal["everything", "smoothness"] = Field(default="everything", description="smoothness: β and γ alone")
    final_beta: float | None = Field(default=None, gt=0, description="β falls from init_beta to this or below")
    final_gamma: float | None = Field(default=None, gt=0, description="γ falls from init_gamma to this or below")
    scale_penalties: bool = Field(default=False, description="λβ, λγ for as few steps as these, not the paper's")
    seed: int = Field(default=0, ge=0, lt=2**31)
    evaluate_every: int = Field(default=1, ge=1, description="epochs between evaluations")
    checkpoint_seconds: float = Field(default=60, ge=0, description="least time between checkpoints")
    precision: Literal["float32", "bfloat16"] = Field(default="float32", description="bfloat16 is autocast")
    channels_last: bool = False
    compile: bool = Field(default=False, description="one compiled function for a whole step")
    sync_batchnorm: bool = Field(default=False, description="batch statistics over all processes")
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, …")

    @field_validator("milestones")
    @classmethod
    def _increasing(cls, milestones: tuple[float, ...]) -> tuple[float, ...]:
        if any(not 0 < share < 1 for share in milestones) or list(milestones) != sorted(set(milestones)):
            raise ValueError("expected increasing shares between 0 and 1, such as [0.75, 0.875]")
        return milestones

    @model_validator(mode="after")
    def _possible(self) -> "TrainConfig":
        """Refuse what would be ignored or cannot be computed."""
        for key in ("milestones", "lr_decay"):
            if self.schedule == "cosine" and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"train.{key} belongs to train.schedule='steps', got 'cosine'; leave one of them out")
        if self.milestones and self.schedule == "steps" and self.warmup >= self.milestones[0]:
            raise ValueError(
                f"train.warmup ends before the first milestone, {self.milestones[0]:g}; got {self.warmup:g}"
            )
        if self.scale_penalties and self.optimizer != "sgd":
            raise ValueError("train.scale_penalties counts the way that SGD goes, and AdamW does not; leave one out")
        if self.accumulate > self.batch_size // 2:
            raise ValueError(
                f"train.accumulate leaves at least 2 samples per piece, so at most {self.batch_size // 2} pieces of "
                f"{self.batch_size} samples; got {self.accumulate}"
            )
        return self
