"""How do docstrings reach a page? Doctests as blocks of code, formulas as MathML, which browsers draw without a script.

An extension of griffe, which reads the docstrings for mkdocstrings (see `mkdocs.yml`).
"""

import re
import textwrap
from typing import Any

import griffe
from latex2mathml.converter import convert

INLINE = re.compile(r":math:`(.*?)`", re.DOTALL)
BLOCK = re.compile(r"^\.\. math:: *(.*?)(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
DOCTEST = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)


def readable(docstring: str) -> str:
    """Return a docstring as Markdown."""
    docstring = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)
    docstring = INLINE.sub(lambda found: convert(_line(found[1])), docstring)
    return BLOCK.sub(lambda found: f"<p>{convert(_line(found[1]), display='block')}</p>", docstring)


class Docstrings(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = readable(obj.docstring.value)


def _line(formula: str) -> str:
    return " ".join(textwrap.dedent(formula).split())
