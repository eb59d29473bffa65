"""Printed, a result is one line: nobody reads a batch of pixels."""

import torch

import lowcurve as lc


def test_results_print_as_one_line() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3))
    x = torch.rand(6, 3, 2, 2)
    y = net(x).argmax(1)
    geometry = lc.curvature(net, x, y)
    assert str(geometry) == (
        f"6 samples, medians: gradient norm {geometry.gradient_norm.median():.3g}, Hessian norm "
        f"{geometry.hessian_norm.median():.3g}, curvature {geometry.curvature.median():.3g}"
    )
    found = lc.attack(net, x, y, "fgsm", eps=0.01)
    assert str(found) == f"6 samples: {int(found.success.sum())} adversarial, accuracy left {found.accuracy:.1%}"
    proven = lc.certify(net, x, y)
    assert str(proven) == f"6 samples, 6 right: median certified radius {proven.radius.median():.3g}"
    assert str(lc.certify(net, x, (y + 1) % 3)) == "6 samples, 0 right: nothing to certify"
