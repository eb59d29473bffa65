"""Wrong models and damaged run folders under every verb: success or one line and exit code 2, never a traceback."""

from pathlib import Path

import pytest

from tests.boundary import files, verbs

EVERY = 101  # one damaged file in so many; `python -m tests.boundary` tries one in 5


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    return verbs.prepared(tmp_path) | {"page": str(tmp_path / "page.html")}


def test_a_wrong_model_is_one_line(names: dict[str, str]) -> None:
    _, wrong = files.failures(files.model_lines(odd=False), names)
    assert not wrong, "\n".join(wrong)


def test_a_damaged_run_is_one_line(names: dict[str, str], tmp_path: Path) -> None:
    run = files.finished_run(tmp_path, names)
    count, wrong = files.failures(files.file_lines(run, tmp_path, EVERY), names)
    assert count > 5 and not wrong, "\n".join(wrong)


@pytest.mark.parametrize("data", ["moons", "digits"])
def test_data_of_another_shape(data: str, names: dict[str, str]) -> None:
    other = {"moons": "resnet18", "digits": "convnet"}[data]
    settings = [f"--set=data.name={data}", f"--set=model.name={other}", "--set=data.limit_train=4"]
    line = verbs.Line("train", "data", ["train", "{recipe}", "--output={runs}", *settings])
    assert verbs.run(line, names).good
    line = verbs.Line("measure", "data", ["measure", verbs.GOOD, "--data=moons", "--samples=4"])
    assert verbs.run(line, names).what == verbs.REFUSED
