"""How easily is a model refuted? Verified attacks in ℓ₂ and ℓ∞ balls, and robust accuracy over a data set.

Inputs are in [0, 1]. A sample's random numbers come from the seed and its own content, so it is attacked in
the same way whatever batch it is in; only the rounding of the model's own sums may differ with the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from lowcurve import checks
from lowcurve.attacks import losses, verify
from lowcurve.attacks.apgd import apgd_cross_entropy, apgd_targeted
from lowcurve.attacks.fab import fab_targeted
from lowcurve.attacks.pgd import fgsm, projected_gradient
from lowcurve.attacks.square import random_squares
from lowcurve.attacks.suite import Member, in_turn
from lowcurve.observe import observing
from lowcurve.outputs import classifier, refuse_batch_statistics
from lowcurve.types import AttackResult


@dataclass(frozen=True)
class Attack:
    """An entry of `ATTACKS`: what runs, how many steps by default, and whether it looks at gradients (None: in part).

    `run(model, x, y, eps, *, norm, steps, restarts, seed)` returns the best points it can find within eps, (N,), of x.
    """

    run: Callable[..., Tensor]
    steps: int
    white_box: bool | None
    title: str


ATTACKS: dict[str, Attack] = {
    "pgd": Attack(projected_gradient, 40, True, "PGD on the cross-entropy"),
    "pgd-margin": Attack(partial(projected_gradient, loss=losses.excess), 40, True, "PGD on the margin"),
    "fgsm": Attack(fgsm, 1, True, "one gradient step"),
    "apgd-ce": Attack(apgd_cross_entropy, 100, True, "Auto-PGD on the cross-entropy"),
    "apgd-t": Attack(apgd_targeted, 100, True, "Auto-PGD, targeted DLR loss, up to 9 targets"),
    "fab-t": Attack(fab_targeted, 100, True, "FAB, nearest mistakes, up to 9 targets"),
    "square": Attack(random_squares, 5000, False, "Square, random search"),
}
SUITE = ("apgd-ce", "apgd-t", "fab-t", "square")  # AutoAttack's standard, in its order
ATTACKS["auto"] = Attack(
    partial(in_turn, [Member(ATTACKS[name].run, ATTACKS[name].steps / 100) for name in SUITE]),
    100,
    None,
    "AutoAttack's standard suite: APGD-CE, APGD-T, FAB-T, Square",
)


def attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    name: str,
    *,
    eps: float | Tensor,
    norm: float = 2,
    steps: int | None = None,
    restarts: int = 1,
    seed: int = 0,
) -> AttackResult:
    """Look for misclassified points within ε of each sample, ‖x' - x‖ ≤ ε and x' in [0, 1].

    `name` is a key of `ATTACKS`; `eps` a number or one radius per sample; `norm` is 2 or `math.inf`; `steps`
    the gradient steps (queries for "square") of one run, by default the attack's own; of "auto" those of its gradient
    attacks, and Square gets 50 queries for each. Samples that are
    misclassified to begin with, or that the attack does not break, come back unchanged. `success` and
    `accuracy` are computed anew from the returned examples; a point at which the model's logits are not finite
    is no success, as the model gives no answer there. The model may return logits, or an object or a mapping
    with `logits`. Its mode, gradients and buffers and the global RNG are left as they were.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.eye(2))
    >>> x, y = torch.tensor([[0.5, 0.3], [0.9, 0.1]]), torch.tensor([0, 0])  # at distances √2/10, 4√2/10
    >>> attack(model, x, y, "pgd", eps=0.2).success
    tensor([ True, False])
    """
    checks.usable(model)
    checks.choice(ATTACKS, attack=name)
    checks.whole(1, steps=1 if steps is None else steps, restarts=restarts)
    checks.whole(seed=seed)
    verify.check_inputs(x, y)
    refuse_batch_statistics(model)
    norm = verify.check_norm(norm)
    radii = verify.radii_per_sample(eps, x, norm)
    steps = ATTACKS[name].steps if steps is None else steps
    x, model = x.detach(), classifier(model)
    with observing(model):
        with torch.no_grad():
            logits = checks.run(model, x)
        verify.check_logits(logits, y)
        correct = (logits.argmax(1) == y) & (radii > 0)
        adversarial = x.clone()
        if correct.any():
            adversarial[correct] = ATTACKS[name].run(
                model, x[correct], y[correct], radii[correct],
                norm=norm, steps=steps, restarts=restarts, seed=seed,
            )  # fmt: skip
        success = verify.successes(model, adversarial, x, y, radii, norm)
    return AttackResult(adversarial, success, 1 - success.double().mean().item())
