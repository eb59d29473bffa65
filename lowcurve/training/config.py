"""What does a recipe say? A typed configuration; its defaults are the paper's, mistakes are named."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from lowcurve.data import DATASETS, Dataset, load_dataset
from lowcurve.data.dataset import HELD_OUT
from lowcurve.errors import UserError, unknown_name
from lowcurve.methods import find_method, initial_sharpness, terms_of
from lowcurve.models import MODELS
from lowcurve.objectives import TERMS
from lowcurve.training.coefficients import MethodConfig, method_section
from lowcurve.training.recipes import in_name, named_recipe, renamed
from lowcurve.training.settings import Section, TrainConfig
from lowcurve.training.toml import apply_override, read_toml, write_toml


class DataConfig(Section):
    """Which samples."""

    name: str = Field(default="digits", description="a data set's name, folder:PATH or parquet:PATH")
    dir: Path | None = Field(default=None, description="where the files are; default $LOWCURVE_DATA or the cache")
    limit_train: int | float | None = Field(
        default=None, description="use so many training samples only, or this share of them"
    )
    validation: int | float | None = Field(
        default=None,
        gt=0,
        description="training samples (a number, or a share below 1) to judge on, not on the test split",
    )
    limit_test: int | None = Field(default=None, ge=1, description="use so many test samples only")
    augmentation: tuple[str, ...] | None = Field(default=None, description="default: what is customary for the set")
    wrong_labels: float = Field(
        default=0.0, ge=0, lt=1, description="share of training labels replaced by other classes, drawn by train.seed"
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if not name.startswith(("folder:", "parquet:")) and name not in DATASETS:
            raise unknown_name("data set", name, DATASETS)
        return name

    @field_validator("limit_train", mode="before")
    @classmethod
    def _number_or_share(cls, limit: Any) -> Any:
        share = isinstance(limit, float) and 0 < limit < 1
        whole = isinstance(limit, int | float) and limit >= 2 and float(limit).is_integer()
        if not (share or whole or limit is None):
            raise ValueError("expected a whole number of samples from 2 on, or a share of them below 1")
        return limit if share or limit is None else int(limit)

    @property
    def judged(self) -> str:
        """What the network is judged on, in words: "test" samples, or "held-out" ones of the training set."""
        return "test" if self.validation is None else HELD_OUT

    def load(self) -> Dataset:
        """Read the samples: what is held out first, then the parts of both splits."""
        return self.parts(load_dataset(self.name, self.dir))

    def parts(self, dataset: Dataset) -> Dataset:
        """Return the samples that are meant of all."""
        return dataset.held_out(self.validation).subset(self.limit_train, self.limit_test)


class ModelConfig(Section):
    """Which network, or which trained one to start from."""

    name: str = Field(default="resnet18", description="a key of MODELS")
    width: int = Field(default=64, ge=1, description="channels of the first layer")
    residual: Literal["mean", "sum"] = Field(default="mean", description="how residual branches are joined")
    source: str | None = Field(
        default=None, alias="from", description="run folder or package:factory to fine-tune instead of `name`"
    )
    skip: tuple[str, ...] = Field(default=(), description="modules that surgery leaves alone, such as a head")
    last_layer: Literal["free", "unit"] | None = Field(
        default=None, description="with spectral norms: whether the last layer has unit norm too; default: the method's"
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in MODELS:
            raise unknown_name("model", name, MODELS)
        return name


class Config(Section):
    """A whole recipe. The run is written to `output`/`name`."""

    name: str = Field(default="", max_length=200, description="default: data-model-method-seed")
    output: Path = Path("runs")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    method: SerializeAsAny[MethodConfig] = Field(default_factory=lambda: method_section()())
    train: TrainConfig = TrainConfig()

    def samples(self) -> Dataset:
        """Read the samples with the labels that the run is trained with."""
        return self.data.load().mislabeled(self.data.wrong_labels, self.train.seed)

    @field_validator("method", mode="before")
    @classmethod
    def _with_coefficients(cls, given: Any) -> Any:
        return method_section().model_validate(given) if isinstance(given, Mapping) else given

    @model_validator(mode="after")
    def _with_last_layer(self) -> "Config":
        """Put the method's own choice where the recipe makes none."""
        method, chosen = self.method.method, self.model.last_layer
        if chosen is not None and not method.spectral:
            raise ValueError(
                f"model.last_layer={chosen!r} needs spectral norms, which {self.method.name} has not; leave it out"
            )
        if chosen is None and method.spectral:
            self.__dict__["model"] = self.model.model_copy(update={"last_layer": method.last_layer})
        return self

    @model_validator(mode="after")
    def _possible(self) -> "Config":
        """Refuse what cannot work together."""
        method = self.method.method
        every = terms_of(replace(method, terms=tuple(TERMS)), self.method.coefficients)
        terms = {name: term for name, term in every.items() if name in method.terms}
        sharpest = initial_sharpness(method, self.method.init_beta)
        for term in every.values():
            if (problem := term.refusal(terms, sharpest)) is not None:
                raise ValueError(problem)
        differentiates = any(term.input_gradients for term in terms.values())
        if self.train.precision == "bfloat16" and differentiates:
            raise ValueError("train.precision='bfloat16' is too coarse for gradient penalties; use 'float32'")
        if self.train.mixup and any(term.overrides("change_inputs", "change_scores") for term in terms.values()):
            raise ValueError(f"train.mixup gives samples two labels, {self.method.name} needs one each; leave one out")
        for key in ("beta", "gamma"):
            final, first = getattr(self.train, f"final_{key}"), getattr(self.method, f"init_{key}")
            if final is not None and final > first:
                raise ValueError(
                    f"train.final_{key} is where {key} falls to from method.init_{key} ({first:g}), got {final:g}; "
                    "give a smaller one"
                )
        if any(part in self.name for part in "/\\\0") or self.name in (".", ".."):
            raise ValueError(f"name is one folder, got {self.name!r}; put the rest in `output`")
        return self

    @property
    def run_name(self) -> str:
        """The run's folder below `output`."""
        if self.name:
            return self.name
        return f"{in_name(self.data.name)}-{self.model.name}-{self.method.name}-s{self.train.seed}"

    @property
    def folder(self) -> Path:
        """Where the run is written."""
        return self.output / self.run_name


def read_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe, a file or one that has a name, and apply overrides such as `train.epochs=20`."""
    tree = None if os.path.exists(path) else named_recipe(str(path))  # noqa: PTH110 (Path.exists fails on long names)
    tree = _with_old_meaning(read_toml(path), path) if tree is None else tree
    return change_config(tree, overrides, str(path))


def change_config(tree: dict[str, Any], overrides: Sequence[str], where: str) -> Config:
    """Apply overrides to a tree of values; its name follows them, unless they name it too."""
    before = {section: dict(values) for section, values in tree.items() if isinstance(values, dict)}
    for override in overrides:
        apply_override(tree, override)
    if not any(override.partition("=")[0].strip() == "name" for override in overrides):
        tree = renamed(tree, before)
    return parse_config(tree, where)


def _with_old_meaning(tree: dict[str, Any], path: Path | str) -> dict[str, Any]:
    """Say of a run what its recipe did not have to say when its last layer always had unit norm."""
    method, model = tree.get("method"), tree.setdefault("model", {})
    name = method.get("name") if isinstance(method, dict) and Path(path).name == "config.toml" else None
    if isinstance(name, str) and isinstance(model, dict) and find_method(name).spectral:
        model.setdefault("last_layer", "unit")
    return tree


def parse_config(tree: Mapping[str, Any], where: str = "the configuration") -> Config:
    """Check a tree of values; every mistake becomes a line that says expected, got and the nearest name."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        lines = [_explain(dict(problem)) for problem in error.errors()]
        raise UserError(f"{where} has {len(lines)} mistake(s): " + "; ".join(lines)) from None
    except RecursionError:
        raise UserError(f"{where} is nested too deeply; a recipe has sections of plain values") from None


def _explain(problem: dict[str, Any]) -> str:
    path = [str(part) for part in problem["loc"]]
    place = ".".join(path) or "recipe"
    if problem["type"] == "extra_forbidden":
        keys = _keys(Config)
        beside = [key for key in keys if key.rpartition(".")[0] == ".".join(path[:-1])]
        near = _nearest(path[-1], beside) or _nearest(path[-1], keys)
        return str(unknown_name("key", place, {*beside, near} - {""}, near))
    message = str(problem["msg"]).removeprefix("Value error, ")
    shown = repr(problem.get("input"))
    got = f", got {shown[:80]}" if len(path) > 1 or len(shown) < 80 else ""
    return f"{place}: {message}{got}"


def _nearest(word: str, keys: Sequence[str]) -> str:
    """Return the key whose last part is nearest: sections in common make no two keys alike."""
    by_word = {key.rpartition(".")[2]: key for key in keys}
    return by_word[found[0]] if (found := get_close_matches(word, by_word, n=1)) else ""


def _keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, info in section.model_fields.items():
        key = prefix + (info.alias or name)
        inner = method_section() if info.annotation is MethodConfig else info.annotation
        names.append(key)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names += _keys(inner, key + ".")
    return names


def dump_config(config: Config) -> str:
    """Write `config` as TOML, every value resolved; `read_config` reads it back to an equal one."""
    tree = config.model_dump(mode="json", by_alias=True)
    for key in config.method.foreign():
        del tree["method"][key]
    return write_toml(tree)
