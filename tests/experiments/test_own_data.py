"""`reproduce` on data of one's own: every measurement works, and no path becomes part of a name."""

import json
import os
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from lowcurve.cli import app
from lowcurve.errors import UserError
from lowcurve.evaluation.names import NAME, data_name
from lowcurve.experiments import attacks, autoattack, demo, discrepancy, geometry, gradient_robustness, saliency
from lowcurve.experiments.collect import collect
from lowcurve.experiments.executor import perform
from lowcurve.experiments.request import Request
from lowcurve.report.page import write_page
from lowcurve.report.write import write_index, write_result
from tests.data import makers
from tests.experiments.test_reproduce import TABLE, TINY
from tests.report.example import example

MEASUREMENTS = (
    geometry.GEOMETRY,
    discrepancy.GEOMETRY_TRAIN,
    gradient_robustness.STABILITY,
    attacks.PGD,
    autoattack.AUTOATTACK,
    demo.CERTIFICATE,
    saliency.SALIENCY,
)


def own_data(folder, kind):
    images, labels = makers.samples(40, shape=(1, 8, 8), classes=2)
    if kind == "folder":
        makers.folder(folder / "my [red] images, é", images[:, 0], labels, ["a", "b"])
        return f"folder:{folder}/my [red] images, é"
    makers.parquet(folder / "my images.parquet", images[:, 0], labels)
    return f"parquet:{folder}/my images.parquet"


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_own_data_from_nothing_to_a_page(tmp_path, kind):
    experiment = replace(TABLE, measurements=MEASUREMENTS, rows=TABLE.rows[1:])
    asked = Request(experiment, TINY, tmp_path / "runs", tmp_path / "results", data=own_data(tmp_path, kind))
    (planned,) = asked.grid()
    perform(planned, asked.tasks)
    result = collect(asked)
    assert result.complete
    assert re.fullmatch(NAME, result.experiment)
    assert re.fullmatch(NAME, planned.name)
    path = result.save(asked.results)
    written = write_result(result, path.parent)
    assert {file.parent for file in written} == {path.parent} == {asked.results / "tiny"}
    write_index(asked.results)
    assert planned.name in write_page([asked.results], tmp_path / "page.html").read_text()
    assert asked.data in json.loads(path.read_text())["command"]


@pytest.mark.parametrize(
    "data", ["folder:/", "folder:..", "folder:../../x", "parquet:" + "y" * 400, "folder:a/b/é", "folder:\0", "x/../y"]
)
def test_any_data_becomes_a_name(data):
    assert re.fullmatch(NAME, f"table-geometry-{data_name(data)}")
    assert len(data_name(data)) < 70


def test_two_paths_are_two_names():
    assert data_name("folder:/a/images") != data_name("folder:/b/images")


def test_the_command_says_what_is_wrong_with_the_data(tmp_path):
    """A worker's error about a file comes back whole, and the table is still printed."""
    folder = tmp_path / "empty [/] folder"
    folder.mkdir(parents=True)
    arguments = ["--rows", "lcnn", "--seeds", "0", "--output", str(tmp_path / "runs"), "--results", str(tmp_path / "r")]
    shown = CliRunner().invoke(app, ["reproduce", "table-geometry", "--data", f"folder:{folder}", *arguments])
    assert isinstance(shown.exception, UserError)
    assert "expected at least 2 classes" in " ".join(shown.output.split())


def test_what_the_disk_refuses_is_a_message(tmp_path):
    """A file stands where each verb wants its folder; links lead nowhere."""
    (tmp_path / "file").write_text("")
    example().save(tmp_path / "in")
    inside = str(tmp_path / "file" / "x")
    for arguments in (
        ["reproduce", "table-geometry", "--show", "--results", inside],
        ["reproduce", "table-geometry", "--rows", "lcnn", "--output", inside, "--results", str(tmp_path / "r")],
        ["demo", "--output", inside],
        ["report", str(tmp_path / "in"), "--output", inside],
    ):
        shown = CliRunner().invoke(app, arguments)
        assert isinstance(shown.exception, (UserError, SystemExit)), arguments
        said = " ".join(re.sub("[│╭╮╰╯─]", " ", shown.output).split()) + str(shown.exception)
        assert re.search("cannot write|can be written to", said), arguments
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "workers.log").symlink_to(tmp_path / "victim")
    command = ["reproduce", "table-geometry", "--output", str(tmp_path / "runs"), "--results", str(tmp_path / "r")]
    assert "workers.log" in str(CliRunner().invoke(app, command).exception)
    assert not os.path.lexists(tmp_path / "victim")
