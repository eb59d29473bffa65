"""On the command line anything wrong is one line and exit code 2: every option of every verb × nonsense."""

from pathlib import Path

import pytest

from tests.boundary import verbs


@pytest.mark.parametrize("verb", verbs.verbs())
def test_nonsense_is_one_line_and_exit_2(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, wrong = verbs.failures(verb, tmp_path)
    assert not wrong, "\n".join(wrong)
