"""Can the figures be trusted? The sanity flags of AutoAttack (Croce and Hein 2020), and one more.

A flag is a sentence. An evaluation without flags is not proven right, but one with flags is likely to be wrong.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from lowcurve.attacks import ATTACKS
from lowcurve.attacks.losses import ascent
from lowcurve.attacks.table import Evaluation
from lowcurve.objectives.cross_entropy import log_odds_against
from lowcurve.observe import observing
from lowcurve.outputs import classifier

_SLACK = 0.002  # accuracies closer than this count as equal


def of_model(model: nn.Module, x: Tensor, y: Tensor) -> list[str]:
    """Look at the model itself: zero gradients, random outputs, probabilities in place of logits."""
    flags = []
    model = classifier(model)
    with observing(model):
        logits, _, gradient = ascent(model, x, log_odds_against, y)
        with torch.no_grad():
            again = model(x)
    zero = int((gradient.flatten(1) == 0).all(1).sum())
    if zero:
        flags.append(
            f"{zero} of {len(x)} samples have a zero gradient: gradient attacks see nothing there; "
            "trust Square more, or attack a smoother version of the model"
        )
    if bool(((logits - again).abs().amax(1) > 1e-4 * logits.abs().amax(1)).any()):
        flags.append(
            "the model's outputs are random: the same input gives other logits; "
            "attack their mean over many draws, or switch the randomness off"
        )
    positive, sums = bool((logits >= 0).all()), logits.sum(1)
    if positive and bool(((sums - 1).abs() < 1e-4).all()):
        flags.append("the model returns probabilities: rounding hides their gradients; remove the final softmax")
    return flags


def of_table(evaluation: Evaluation) -> list[str]:
    """Look at the table: a black-box attack that beats white-box ones, accuracy that rises with the radius."""
    flags = []
    white = [name for name in evaluation.attacks if ATTACKS[name].white_box is True]
    black = [name for name in evaluation.attacks if ATTACKS[name].white_box is False]
    for eps in evaluation.radii if white else ():
        best = min(evaluation.accuracy(name, eps) for name in white)
        for name in black:
            gain = best - evaluation.accuracy(name, eps)
            if gain > _SLACK:
                flags.append(
                    f"{name} is {gain:.1%} stronger than every gradient attack at ε = {eps:g}: "
                    "gradients may be masked; give all attacks more steps and restarts"
                )
    for name in evaluation.attacks:
        curve = evaluation.curve(name)
        for smaller, larger in pairwise(curve):
            if larger.accuracy > smaller.accuracy + _SLACK:
                flags.append(
                    f"accuracy under {name} rises from {smaller.accuracy:.1%} at ε = {smaller.eps:g} to "
                    f"{larger.accuracy:.1%} at ε = {larger.eps:g}: it misses examples; give it more steps"
                )
    return flags
