"""Every model of the zoo: converted, compared with the original, trained for a step, folded."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lowcurve import CenteredSoftplus, convert, fold
from lowcurve.layers.normalized import spectral_of
from lowcurve.surgery.refuse import is_linear_layer
from tests.surgery.zoo import ZOO, as_if_trained, logits

EXACT = [name for name, (*_, exact) in ZOO.items() if exact]


@cache
def original(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return as_if_trained(ZOO[name][0]())


@cache
def converted(name: str):
    return convert(original(name), ZOO[name][1])


@pytest.mark.parametrize("name", ZOO)
def test_every_site_has_its_own_beta(name):
    model, report = converted(name)
    sites = [module for module in model.modules() if isinstance(module, CenteredSoftplus)]
    assert len(sites) == ZOO[name][2]
    assert len({id(site.log_beta) for site in sites}) == len(sites)
    assert sum(
        change.now in ("CenteredSoftplus", "LeakyCenteredSoftplus", "SmoothClip") for change in report.replaced
    ) == len(sites)


@pytest.mark.parametrize("name", EXACT)
def test_large_beta_and_gamma_restore_the_original(name):
    example = ZOO[name][1]
    model, _ = convert(original(name), example, spectral=False, init_beta=1e6, init_gamma=1e6)
    with torch.no_grad():
        before = logits(original(name)(example))
        torch.testing.assert_close(logits(model(example)), before, atol=1e-4, rtol=0)
    assert before.std() > 1e-3  # a comparison of zeros would say nothing


@pytest.mark.parametrize("name", ZOO)
def test_linear_layers_outside_attention_are_normalized(name):
    model, report = converted(name)
    free = tuple(change.name for change in report.left if change.note.startswith(("attention", "last layer")))
    for path, module in model.named_modules():
        if is_linear_layer(module):
            assert (spectral_of(module) is None) == (bool(free) and path.startswith(free)), path


@pytest.mark.parametrize("name", ZOO)
def test_a_training_step_reaches_every_parameter(name):
    model, _ = convert(original(name), ZOO[name][1])
    example = ZOO[name][1]
    labels = torch.arange(len(example)) % 5
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(0)
    loss = F.cross_entropy(logits(model(example)), labels)
    loss.backward()
    optimizer.step()
    assert torch.isfinite(loss)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    betas = [value for path, value in model.named_parameters() if path.endswith("log_beta")]
    assert any(value.grad != 0 for value in betas)


@pytest.mark.parametrize("name", ZOO)
def test_fold_keeps_the_logits(name):
    model, _ = converted(name)
    plain = fold(model)
    with torch.no_grad():
        torch.testing.assert_close(logits(plain(ZOO[name][1])), logits(model(ZOO[name][1])), atol=1e-5, rtol=0)
    assert not [m for m in plain.modules() if type(m).__module__.startswith("lowcurve")]
    assert not [m for m in plain.modules() if nn.utils.parametrize.is_parametrized(m)]


def test_attention_is_reported_and_left():
    for name, blocks in [("transformers ViT", 2), ("torch.nn transformer", 2), ("hand-written attention", 1)]:
        model, report = converted(name)
        left = [change for change in report.left if change.note == "attention is not converted"]
        assert len(left) == blocks
        kept = dict(original(name).named_parameters())
        for path, value in model.named_parameters():
            if path.startswith(tuple(change.name + "." for change in left)):
                assert torch.equal(value, kept[path])


@pytest.mark.parametrize("name", [name for name in ZOO if isinstance(ZOO[name][1], torch.Tensor)])
def test_merged_batch_norms_change_no_output(name):
    model, example = converted(name)[0], ZOO[name][1]
    merged = fold(model, example)
    with torch.no_grad():
        expected, found = logits(model.eval()(example)), logits(merged(example))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
