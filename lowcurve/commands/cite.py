"""`lowcurve cite`: what to cite."""

import typer

_BIBTEX = """\
@inproceedings{srinivas2022lowcurvature,
  title     = {Efficient Training of Low-Curvature Neural Networks},
  author    = {Srinivas, Suraj and Matoba, Kyle and Lakkaraju, Himabindu and Fleuret, Fran{\\c{c}}ois},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {35},
  year      = {2022}
}"""


def cite() -> None:
    """Print the BibTeX entry of the paper that lowcurve implements."""
    typer.echo(_BIBTEX)
