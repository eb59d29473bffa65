"""The notebook runs from top to bottom, and shows what its text says."""

import json
from pathlib import Path

import matplotlib
import torch

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tour.ipynb"


def test_the_tour_runs_from_top_to_bottom(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    names: dict = {}
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    with torch.random.fork_rng():
        for number, cell in enumerate(cells):
            assert cell.get("outputs", []) == []  # committed without outputs, which would age
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    medians = {name: values.median() for name, values in names["curvatures"].items()}
    assert medians["low curvature"] < medians["standard"] / 2
    correct = names["model"](names["x_test"]).argmax(1) == names["y_test"]
    assert correct.float().mean() > 0.8
    assert names["certificate"].radius.median() > 0
    names["plt"].close("all")
