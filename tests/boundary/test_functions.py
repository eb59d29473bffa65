"""At the public boundary anything wrong is a `UserError`: every public function × every parameter × nonsense."""

import pytest

from tests.boundary import functions


@pytest.mark.parametrize("name", functions.public())
def test_nonsense_is_refused_in_words(name: str) -> None:
    _, wrong = functions.failures(name)
    assert not wrong, "\n".join(wrong)
