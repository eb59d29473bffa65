"""The measurements themselves: functions of a trained run and settings that return numbers and lists of numbers."""

from typing import Any

from lowcurve.experiments.subject import SEED, Subject

Settings = dict[str, Any]
Values = dict[str, Any]
MEASURES = ("gradient_norm", "hessian_norm", "curvature")


def geometry(subject: Subject, settings: Settings) -> Values:
    """Measure gradients, Hessians and curvature of the loss and of the margin: means, medians, tails."""
    from lowcurve.geometry.dataset import measure

    split = settings["split"]
    functions = tuple(settings["of"])
    count, tol = settings["samples"], settings["tol"]
    found = measure(subject.model, subject.split(split), count=count, of=functions, tol=tol, seed=SEED)
    values: Values = {"accuracy": subject.accuracy(split)}
    for name in found.columns:
        if name.endswith(MEASURES):
            summary = found.summary(name)
            values |= {name: summary.mean, f"{name}_median": summary.median}
            values |= {f"{name}_top_share": summary.top_share, f"{name}_not_finite": summary.not_finite}
    return {("train_" if split == "train" else "") + key: value for key, value in values.items()}


def stability(subject: Subject, settings: Settings) -> Values:
    """Measure the relative change of the loss's gradient under random noise, and the predicted r·C_f."""
    from lowcurve.geometry.stability import gradient_stability

    x, y = subject.samples(settings["samples"])
    found = gradient_stability(subject.model, x, y, settings["radii"], samples=settings["draws"], seed=SEED)
    change, predicted = found.mean.tolist(), found.predicted.tolist()
    middle = len(change) // 2
    return {
        "stability_radii": settings["radii"],
        "stability_curve": change,
        "stability_predicted": predicted,
        "stability_small": change[0],
        "stability_middle": change[middle],
        "stability_large": change[-1],
        "stability_over_theory": change[middle] / predicted[middle] if predicted[middle] else None,
    }


def pgd(subject: Subject, settings: Settings) -> Values:
    """Attack by PGD at each radius; the clean accuracy is that of the same samples."""
    from lowcurve.attacks.evaluate import evaluate

    radii = settings["radii"]
    chosen = subject.split().subset(settings["samples"], SEED)
    found = evaluate(subject.model, chosen, ("pgd",), radii, steps={"pgd": settings["steps"]}, seed=SEED)
    curve = [cell.accuracy for cell in found.curve("pgd")]
    return {
        "accuracy": curve[0],
        **{f"pgd_{radius:g}": found.accuracy("pgd", radius) for radius in radii},
        "pgd_radii": [0.0, *radii],
        "pgd_curve": [100 * accuracy for accuracy in curve],
        "flags": list(found.flags),
    }


def autoattack(subject: Subject, settings: Settings) -> Values:
    """Attack by APGD-T and Square at one radius, each on its own."""
    from lowcurve.attacks.evaluate import evaluate

    radius = settings["radius"]
    chosen = subject.split().subset(settings["samples"], SEED)
    steps = {"apgd-t": settings["apgd_steps"], "square": settings["square_queries"]}
    found = evaluate(subject.model, chosen, tuple(steps), (radius,), steps=steps, seed=SEED)
    return {
        "accuracy": found.accuracy("clean", 0.0),
        "apgd_t": found.accuracy("apgd-t", radius),
        "square": found.accuracy("square", radius),
        "worst": found.accuracy("worst", radius),
        "flags": list(found.flags),
    }


def certificate(subject: Subject, settings: Settings) -> Values:
    """Certify samples: the share that no input within each radius can change, and the median radius."""
    from lowcurve.errors import UserError
    from lowcurve.guarantees.certificate import certify

    x, y = subject.samples(settings["samples"])
    try:
        found = certify(subject.model, x, y)
    except UserError as refusal:
        return {"certificate_refused": str(refusal)}
    shares = [float((found.radius > radius).double().mean()) for radius in settings["radii"]]
    return {
        **{f"certified_{radius:g}": share for radius, share in zip(settings["radii"], shares, strict=True)},
        "certified_radii": settings["radii"],
        "certified_curve": [100 * share for share in shares],
        "certified_radius": found.radius.median().item(),
        "lipschitz_radius": found.lipschitz_radius.median().item(),
    }


def saliency(subject: Subject, settings: Settings) -> Values:
    """Compare the loss's input gradient at each sample with that after noise; keep the first maps as pictures."""
    import torch
    from torch.nn import functional as F

    from lowcurve.data import DATASETS
    from lowcurve.observe import observing
    from lowcurve.random import generator

    x, y = subject.samples(settings["samples"])
    noise = torch.randn(x.shape, generator=generator(SEED)).flatten(1)
    noisy = x + (settings["radius"] * F.normalize(noise)).view_as(x)
    with observing(subject.model):
        maps = [_gradient(subject.model, inputs, y) for inputs in (x, noisy)]
    cosine = F.cosine_similarity(maps[0].flatten(1), maps[1].flatten(1)).nanmean().item()
    # Pictures are kept of data that comes with a package; other images are not ours to copy into results.
    source = DATASETS.get(subject.dataset.name)
    shown = range(min(settings["shown"], len(x)) if source and source.read else 0)
    return {
        "saliency_cosine": cosine,
        "saliency_radius": settings["radius"],
        "saliency_labels": [subject.dataset.class_names[int(y[index])] for index in shown],
        "saliency_images": [x[index].mean(0).tolist() for index in shown],
        "saliency_maps": [_scaled(maps[0][index]) for index in shown],
        "saliency_noisy": [_scaled(maps[1][index]) for index in shown],
    }


def _gradient(model: Any, x: Any, y: Any) -> Any:
    import torch

    from lowcurve.geometry.functions import FUNCTIONS

    inputs = x.detach().requires_grad_()
    return torch.autograd.grad(FUNCTIONS["loss"](model(inputs), y).sum(), inputs)[0]


def _scaled(gradient: Any) -> list[list[float]]:
    """Sum over channels and divide by the largest entry; three digits are enough for a picture."""
    flat = gradient.sum(0)
    return [[round(value, 3) for value in row] for row in (flat / flat.abs().max().clamp_min(1e-30)).tolist()]


def boundary(subject: Subject, settings: Settings) -> Values:
    """Evaluate the probability of the second class on a grid over a box of the plane, and the mean β."""
    import torch

    from lowcurve.training.log import constants

    left, right, bottom, top = settings["box"]
    steps = settings["steps"]
    xs, ys = torch.linspace(left, right, 3 * steps // 2), torch.linspace(bottom, top, steps)
    grid = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1).reshape(-1, 2)
    with torch.no_grad():
        share = subject.model(grid).softmax(1)[:, 1].reshape(steps, -1)
    betas = list(constants(subject.model)["beta"].values())
    values: Values = {"boundary": [[round(value, 4) for value in row] for row in share.tolist()]}
    return values | ({"mean_beta": sum(betas) / len(betas)} if betas else {})
