"""What must a result's file, a record and a line of measurements hold?"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, model_validator

from lowcurve.evaluation.checked import Count, Name, Number, Numbers, Part, Text
from lowcurve.evaluation.measurement import read_written

Verdict = Literal["holds", "does not hold", "cannot tell", "not measured"]
_POINT = r"-?\d{1,6}(\.\d{1,6})? -?\d{1,6}(\.\d{1,6})?"
Outline = Annotated[str, Field(pattern=rf"^(M{_POINT}(L{_POINT})*Z?)*$")]


class ColumnPart(Part):
    """A heading."""

    key: Name
    label: Text
    digits: Annotated[int, Field(ge=0, le=12)]
    better: Literal["low", "high", "none"]
    scale: Number


class CellPart(Part):
    """Mean and spread over seeds."""

    mean: Number
    std: Number | None
    values: dict[Name, Number]
    low: Number | None = None  # of the 95 % interval
    high: Number | None = None


class RowPart(Part):
    """One kind of model."""

    key: Name
    label: Text
    ours: bool
    cells: dict[Name, CellPart]
    paper: dict[Name, Annotated[list[Number | None], Field(min_length=2, max_length=2)]]
    runs: list[Name]


class VerdictPart(Part):
    """What became of a claim."""

    text: Text
    formula: Text
    source: Literal["paper", "project"]
    threshold: Number
    ours: Number | None
    low: Number | None = None  # of the 95 % interval over samples and seeds
    high: Number | None = None
    verdict: Verdict
    seeds: dict[Name, Number]
    seeds_that_agree: Count
    paper: Number | None
    paper_verdict: Verdict


class LinePart(Part):
    """One line of a figure."""

    row: Text
    label: Text
    x: Numbers
    y: Numbers
    low: Numbers
    high: Numbers
    predicted: Numbers = Field(default_factory=list)

    @model_validator(mode="after")
    def _even(self) -> "LinePart":
        lists = (self.x, self.y, self.low, self.high, self.predicted or self.x)
        if not self.x or len({len(values) for values in lists}) != 1:
            raise ValueError("expected as many values of each kind as there are points, and a point at least")
        return self


class CurvePart(Part):
    """A figure."""

    x_label: Text
    y_label: Text
    log: bool
    lines: list[LinePart]


class NetPart(Part):
    """A decision boundary, as outlines."""

    row: Text = ""
    label: Text
    order: Number
    areas: Annotated[list[Outline], Field(min_length=6, max_length=6)]
    boundary: Outline


class OutlinesPart(Part):
    """Decision boundaries, one per network, behind a slider."""

    nets: Annotated[list[NetPart], Field(min_length=1, max_length=100)]
    start: Count
    width: Annotated[int, Field(ge=1, le=10_000)]
    height: Annotated[int, Field(ge=1, le=10_000)]
    points: list[Annotated[list[Number], Field(min_length=3, max_length=3)]]
    slider: Text = ""
    caption: Text = ""

    @model_validator(mode="after")
    def _shown(self) -> "OutlinesPart":
        if self.start >= len(self.nets) or any(repr(point[2]) not in "01" for point in self.points):
            raise ValueError("expected `start` to be one of the nets, and points of class 0 or 1")
        return self


Matrix = Annotated[list[Annotated[Numbers, Field(min_length=1)]], Field(min_length=1, max_length=4096)]


class ImageRow(Part):
    """One model's pictures, one or several per column: gray in [0, 1], or blue to red in [-1, 1] if `signed`."""

    label: Text
    note: Text
    signed: bool
    cells: list[Annotated[list[Matrix], Field(min_length=1, max_length=16)]]


class ImagesPart(Part):
    """A table of pictures."""

    labels: list[Text]
    rows: Annotated[list[ImageRow], Field(min_length=1)]
    caption: Text = ""

    @model_validator(mode="after")
    def _alike(self) -> "ImagesPart":
        cells = [cell for row in self.rows for cell in row.cells]
        if not self.labels or any(len(row.cells) != len(self.labels) for row in self.rows):
            raise ValueError("expected pictures per column and row, and a column at least")
        if any(len({len(line) for line in matrix}) != 1 for cell in cells for matrix in cell):
            raise ValueError("expected pictures whose lines are equally long")
        return self


class ExtraPart(Part):
    """Pictures by their kind, which is the name of the template that shows them."""

    outlines: OutlinesPart | None = None
    images: ImagesPart | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, content: Any) -> Any:
        """Earlier versions had a kind of picture per figure."""
        if not isinstance(content, dict) or not content.keys() & {"moons", "saliency"}:
            return content
        kinds = {"outlines": content.get("moons")}
        if content.get("saliency") is not None:
            kinds["images"] = _image_table(content["saliency"])
        return {kind: part for kind, part in kinds.items() if part is not None}


def _image_table(old: Any) -> dict[str, Any]:
    try:
        first = {"label": "Input", "note": "", "signed": False, "cells": [[image] for image in old["images"]]}
        rows = [
            {
                "label": row["label"],
                "note": f"mean cosine {row['cosine']:.3f}",
                "signed": True,
                "cells": [list(pair) for pair in zip(row["maps"], row["noisy"], strict=True)],
            }
            for row in old["rows"]
        ]
        return {"labels": old["labels"], "rows": [first, *rows]}
    except (KeyError, TypeError) as error:
        raise ValueError("expected images, and maps of several models at each") from error


class ResultFile(Part):
    """`DIR/PRESET/EXPERIMENT.json`."""

    experiment: Name
    title: Text
    source: Text
    preset: Name
    setting: Text
    command: Text
    created: Text
    environment: dict[Text, Text | None]
    columns: list[ColumnPart]
    rows: list[RowPart]
    verdicts: list[VerdictPart]
    curves: list[CurvePart] = Field(default_factory=list)
    notes: list[Text] = Field(default_factory=list)
    extra: ExtraPart = ExtraPart()

    @model_validator(mode="after")
    def _free(self) -> "ResultFile":
        if self.experiment.lower() == "readme":
            raise ValueError("expected an experiment's name, not that of the index of all results")
        return self


def _readable(text: str) -> str:
    if not len(read_written(text)):
        raise ValueError("expected numbers of one sample at least")
    return text


Written = Annotated[str, Field(max_length=10_000_000, pattern=r"^[\w.+ :-]*$"), AfterValidator(_readable)]


class Taken(Part):
    """A measurement of a run."""

    values: dict[Name, JsonValue]
    settings: dict[Name, JsonValue]
    seed: int
    seconds: Number
    environment: dict[Text, JsonValue] = Field(default_factory=dict)
    left_out: list[Text] = Field(default_factory=list)
    per_sample: dict[Name, Written] = Field(default_factory=dict)


class Line(Taken):
    """A line of `RUN/measurements.jsonl`."""

    name: Name
    weights: Text


class Record(Part):
    """`DIR/PRESET/runs/RUN.json`."""

    name: Name
    setting: Text
    method: Text
    seed: int
    command: Text
    recipe: Annotated[str, Field(max_length=100_000)]
    weights_sha256: Text = ""  # of the final weights; records of earlier versions do not tell it
    environment: dict[Text, JsonValue]
    epochs: list[dict[Name, Number | None]]
    beta: dict[Text, Number]
    gamma: dict[Text, Number]
    sigma: dict[Text, Number] = Field(default_factory=dict)
    measurements: dict[Name, Taken]
