"""The policy table against PyTorch's own functions, and against what the documentation says."""

import inspect
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lowcurve import convert
from lowcurve.surgery.rewrite import module_for
from lowcurve.surgery.rules import LEFT, MODULE_OF, NAMED_SMOOTH, REFUSED, REPLACED

PAGE = Path(__file__).parents[2] / "docs" / "conversion.md"
CALLS = [f for f, (kind, _) in MODULE_OF.items() if kind in REPLACED]


@pytest.mark.parametrize("kind", [*REPLACED, *LEFT, *REFUSED], ids=lambda kind: kind.__name__)
def test_every_rule_is_documented(kind):
    assert f"`{kind.__name__}`" in PAGE.read_text()


@pytest.mark.parametrize("name", NAMED_SMOOTH)
def test_every_name_is_documented(name):
    assert f"`{name}`" in PAGE.read_text()


@pytest.mark.parametrize("function", CALLS, ids=lambda f: f"{getattr(f, '__module__', '')}.{f.__name__}")
def test_functions_and_modules_agree(function):
    x = torch.linspace(-4, 8, 25)
    module = module_for(function, (), {})
    torch.testing.assert_close(module(x.clone()), function(x.clone()))


def test_arguments_reach_the_module():
    x = torch.linspace(-4, 8, 25)
    for function, (kind, names) in MODULE_OF.items():
        if kind in (nn.LeakyReLU, nn.ELU, nn.CELU) and "inplace" in names:
            torch.testing.assert_close(module_for(function, (0.3,), {})(x), function(x, 0.3))
            keyword = {names[0]: 0.7}
            torch.testing.assert_close(module_for(function, (), keyword)(x), function(x, **keyword))
    torch.testing.assert_close(
        module_for(torch.nn.functional.gelu, (), {"approximate": "tanh"})(x), nn.GELU(approximate="tanh")(x)
    )


def test_every_elementwise_activation_of_torch_has_a_decision():
    decided = {*REPLACED, *LEFT, *REFUSED}
    no_activation = {"MultiheadAttention", "Softmin", "Softmax2d", "Tanhshrink"}
    for name, kind in inspect.getmembers(nn.modules.activation, inspect.isclass):
        if (
            issubclass(kind, nn.Module)
            and kind.__module__ == "torch.nn.modules.activation"
            and name not in no_activation
        ):
            assert decided & set(kind.__mro__), name


@pytest.mark.parametrize("kind", REPLACED, ids=lambda kind: kind.__name__)
def test_replacements_tend_to_what_the_note_says(kind):
    low, report = convert(nn.Sequential(kind()), torch.zeros(1, 3), init_beta=1e6)
    x = torch.linspace(-4, 4, 33)
    limit: Tensor = torch.relu(x) if report.replaced[0].note else kind()(x)
    torch.testing.assert_close(low(x), limit, atol=1e-5, rtol=0)
