"""Which experiments are there? Every table and figure of the paper by name, as data; see `reproduce`."""

from importlib import import_module

from lowcurve.experiments.experiment import Experiment

# In the order of the paper. Each file has all that is known of its tables and figures: rows, what is measured and how,
# claims, and the paper's numbers.
_FILES = (
    "geometry",
    "moons",
    "gradient_robustness",
    "attacks",
    "discrepancy",
    "ablations",
    "autoattack",
    "geometry_appendix",
    "epoch_times",
    "saliency",
    "search",
    "label_noise",
    "small_data",
    "transformers",
)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for file in _FILES for experiment in import_module(f"{__name__}.{file}").EXPERIMENTS
}


def experiment_of(table: str) -> str | None:
    """Return the name of the experiment that a table is of: with other data than the preset's its name goes on.

    >>> experiment_of("table-geometry-cifar10"), experiment_of("table-geometry-svhn-vgg11"), experiment_of("mine")
    ('table-geometry', 'table-geometry-svhn-vgg11', None)
    """
    return max((name for name in EXPERIMENTS if f"{table}-".startswith(f"{name}-")), key=len, default=None)
