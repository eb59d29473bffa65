"""The page on the paper's claims has the numbers that its script finds."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_number_on_the_page_comes_from_the_script():
    spec = importlib.util.spec_from_file_location("what_is_true", DOCS / "what_is_true.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (DOCS / "what-is-true.md").read_text("utf-8")
    assert script.fill(page, script.numbers()) == page
