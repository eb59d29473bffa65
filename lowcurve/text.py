"""How does text that came out of a file cross a border? Each border has one function that makes it mean itself.

HTML has none here: the page's templates escape by themselves, and charts by `html.escape`.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# Controls, and the marks that reorder what is shown: they move cursors, hide text or end a line that should go on.
_HIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKDOWN = re.compile(r"[\\`*\[\]<>|~$&]|(?<![^\W_])_|_(?![^\W_])|(?<=:)//|(?<=www)\.")
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": "$<$", ">": "$>$", "|": "$|$",
    "β": r"$\beta$", "γ": r"$\gamma$", "λ": r"$\lambda$", "σ": r"$\sigma$", "ε": r"$\varepsilon$",
    "∇²": r"$\nabla^2$", "∇": r"$\nabla$", "‖": r"$\|$", "₂": "$_2$", "₀": "$_0$", "×": r"$\times$", "Δ": r"$\Delta$",
    "ℓ": r"$\ell$", "−": "$-$", "–": "--", "±": r"$\pm$", "≤": r"$\le$", "≥": r"$\ge$",
}  # fmt: skip
_LATEX_PATTERN = re.compile("|".join(map(re.escape, sorted(_LATEX, key=len, reverse=True))))


def one_line(text: object) -> str:
    r"""Return one line without control characters, for terminals and wherever else a line is a line.

    >>> one_line("a\x1b[31mb\nc")
    'a [31mb c'
    """
    return _HIDDEN.sub(" ", str(text))


def markdown(text: object) -> str:
    r"""Escape for a paragraph, a heading or a table cell of Markdown.

    >>> markdown("a|b <script> C_f"), markdown("# 1")
    ('a\\|b &lt;script&gt; C_f', '\\# 1')
    """
    entities = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
    escaped = _MARKDOWN.sub(lambda found: entities.get(found[0], f"\\{found[0]}"), one_line(text).strip())
    return re.sub(r"^(?=[#+=-])|^(\d+)(?=[.)](?:\s|$))", r"\1\\", escaped)  # what begins a heading, a list or a rule


def markdown_code(text: object) -> str:
    r"""Quote as code of Markdown, in a table too, whatever it holds.

    >>> markdown_code("a`b|c")
    '`` a`b\\|c ``'
    """
    line = one_line(text).replace("|", r"\|")
    longest = max(map(len, re.findall("`+", line)), default=0)
    return f"{'`' * (longest + 1)} {line} {'`' * (longest + 1)}" if longest else f"`{line}`"


def latex(text: object) -> str:
    r"""Escape for the text of a LaTeX document.

    >>> latex("50 % of \\β")
    '50 \\% of \\textbackslash{}$\\beta$'
    """
    return _LATEX_PATTERN.sub(lambda found: _LATEX[found[0]], one_line(text))


def figure(text: object) -> str:
    r"""Escape for matplotlib, which reads $...$ as a formula and leaves lines that begin with _ out of its legends.

    >>> figure("_cost in $")
    ' _cost in \\$'
    """
    shown = str(text).split("\n")[:4]  # longer ones leave no room
    lines = [one_line(line)[:120].replace("$", r"\$") for line in shown]
    return " " * lines[0].startswith("_") + "\n".join(lines)


def headline(name: object, rest: object) -> "Text":
    """Return a line for the terminal whose first part, a name, is bold."""
    from rich.text import Text

    return Text.assemble((one_line(name), "bold"), one_line(rest))


def console(**options: object) -> "Console":
    """Return a console that prints text as it is: no markup, no emoji, no guessed colors."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, **options)  # type: ignore[arg-type]
