"""Runs that hold out training samples: everything that people read says so, and no column mixes them with test ones."""

import json
import logging
import re

import pytest

from lowcurve.report.own import own_results
from tests.report.test_own import invoke

SETTINGS = ["--set", "data.limit_train=64", "--set", "data.limit_test=32", "--set", "train.epochs=2"]


def trained(output, name, *changes):
    return invoke("train", "digits-mlp-lcnn", *SETTINGS, "--set", f"name={name}", "--output", output, *changes)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    output = tmp_path_factory.mktemp("kept")
    return output / "held", trained(output, "held", "--set", "data.validation=40"), trained(output, "tested")


def test_words_of_a_training(said, caplog, tmp_path):
    folder, held, tested = said
    assert "held-out accuracy" in held and not re.search(r"\btest", held)
    assert "test accuracy" in tested and "held-out" not in tested
    card = (folder / "card.md").read_text()
    assert "| held-out accuracy |" in card and "of 32 |" in card and not re.search(r"\btest", card)
    with caplog.at_level(logging.INFO, "lowcurve"):
        trained(tmp_path, "short", "--set", "data.validation=40")
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("epoch")]
    assert len(lines) == 2 and ", held-out " in lines[-1] and max(map(len, lines)) < 80


def test_keys_of_the_files_stay_and_tensorboard_shows_the_words(said):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = said[0]
    row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"test_accuracy", "test_loss"} <= row.keys()
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert "held-out_accuracy" in tags and not [tag for tag in tags if tag.startswith("test")]


def test_words_of_measures(said):
    folder = said[0]
    measured = invoke("measure", folder, "--samples", 8, "--stability", 0)
    assert "Δ_tt = |held-out − train| / train" in measured and not re.search(r"\btest", measured)
    certified = invoke("certify", folder, "--samples", 8)
    assert "held on 8 held-out samples of" in certified and not re.search(r"\btest", certified)
    title = json.loads((folder / "certify/summary.json").read_text())["title"]
    assert "8 held-out samples" in title


def test_a_page_of_both_has_a_column_for_each(said):
    folder = said[0]
    results, _ = own_results([folder, folder.parent / "tested"])
    (training,) = (result for result in results if result.experiment == "training")
    labels = {column["key"]: column["label"] for column in training.columns}
    assert labels["held-out_accuracy"] == "Held-out accuracy (%)" and labels["test_accuracy"] == "Test accuracy (%)"
    held, tested = ({key for key in row["cells"] if key in labels} for row in training.rows)
    assert "held-out_accuracy" in held - tested and "test_accuracy" in tested - held
    names = {curve["y_label"]: [line["row"] for line in curve["lines"]] for curve in training.curves}
    assert names["held-out accuracy (%)"] == ["held"] and names["test accuracy (%)"] == ["tested"]
