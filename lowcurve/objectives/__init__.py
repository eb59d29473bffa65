"""What does training minimize besides cross-entropy? One term per file, all per sample; `TERMS` has them by name."""

from lowcurve.objectives.adversarial import AdversarialInputs
from lowcurve.objectives.certified import BoundaryDistances
from lowcurve.objectives.cure import CurePenalty
from lowcurve.objectives.curvature import CurvaturePenalty
from lowcurve.objectives.gradient import GradientPenalty
from lowcurve.objectives.margin import LabelOffset
from lowcurve.objectives.term import Term

# Name -> class; their order is that in which they are computed and that of a recipe's keys.
TERMS: dict[str, type[Term]] = {
    "curvature": CurvaturePenalty,
    "gradient": GradientPenalty,
    "cure": CurePenalty,
    "certified": BoundaryDistances,
    "margin": LabelOffset,
    "adversarial": AdversarialInputs,
}
