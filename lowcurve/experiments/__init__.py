"""Which experiments are there? Every table and figure of the paper by name, as data; see `reproduce`."""

from lowcurve.experiments import (
    ablations,
    attacks,
    discrepancy,
    epoch_times,
    geometry,
    gradient_robustness,
    moons,
    saliency,
    search,
)
from lowcurve.experiments.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        geometry.TABLE,
        moons.FIGURE,
        *gradient_robustness.FIGURES,
        attacks.PGD,
        discrepancy.TABLE,
        ablations.TABLE,
        attacks.AUTOATTACK,
        *geometry.APPENDIX,
        epoch_times.TABLE,
        saliency.FIGURE,
        search.SEARCH,
    )
}
