"""Are PyTorch's private names in one file, and does each have something that stands for it?"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lowcurve as lc
from lowcurve import compat
from lowcurve.errors import UserError

PACKAGE = Path(compat.__file__).parent
PRIVATE = re.compile(
    r"\._version\b|\._parameters\b|\._modules\b|\._reversed_padding|"
    r"torch\._[A-Za-z]|_foreach_|torch\.[a-z_.]+\._[a-z]|func\._schema|nn\.modules\.\w+\._|import _[A-Z]"
    r"|\b_(BatchNorm|NormBase|DropoutNd|ConvNd|compiled_call_impl|check_input_dim|tracer_cls|USER_PRESERVED\w+|is_full_backward_hook)\b"
    r"|\"_(forward|backward|state|load|parameters|buffers|modules|non_persistent)\w*\""
)
OWN = re.compile(r"class _|= _[A-Z]\w+\.apply|return _[A-Z]\w+\.apply")


def test_private_names_are_in_one_file() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if path.name != "compat.py" and PRIVATE.search(line) and not OWN.search(line):
                found.append(f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}")
    assert not found


def small_net() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))
    low, _ = lc.convert(net, torch.rand(2, 1, 8, 8))
    return low


def numbers(net: nn.Module) -> list[torch.Tensor]:
    x, y = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2])
    measured = lc.curvature(net.eval(), x, y)
    net.train()
    loss = nn.functional.cross_entropy(net(x), y)
    return [measured.curvature, lc.certify(net.eval(), x, y).radius, *torch.autograd.grad(loss, list(net.parameters()))]


def test_questions_that_nobody_answers_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    net = small_net()
    expected = numbers(net)
    for name in ("_graph_task", "_will_execute", "_transforms", "_function_modes", "_current_mode", "_saved_hooks"):
        monkeypatch.setattr(compat, name, None)
    for mine, theirs in zip(numbers(small_net()), expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("sub", ([2.0], [3.0])), ("mul_", ([2.0], 4.0)), ("copy_", ([2.0], [5.0])), ("norm", ([-2.0],))],
)
def test_one_by_one_is_what_one_kernel_does(name: str, arguments: tuple[Any, ...]) -> None:
    def made() -> list[Any]:
        return [[torch.tensor([v, v]) for v in a] if isinstance(a, list) else a for a in arguments]

    one, other = made(), made()
    together, apart = compat.foreach(name, *one), compat._one_by_one(name, *other)
    assert torch.equal(one[0][0], other[0][0])
    assert together is None or torch.equal(together[0], apart[0])


def test_children_without_the_private_dictionary() -> None:
    class Hidden:
        """A module that tells nothing but what is public."""

        def __init__(self, module: nn.Module) -> None:
            self.named_modules = module.named_modules

    shared = nn.ReLU()
    net = nn.Sequential(shared, nn.Sequential(nn.Linear(2, 2)), shared)
    net.register_module("none", None)
    assert compat.children(Hidden(net)) == compat.children(net)  # type: ignore[arg-type]
    assert list(compat.children(net)) == ["0", "1", "2"]
    for name in ("1", "3"):
        assert compat.child(Hidden(net), name) is compat.child(net, name)  # type: ignore[arg-type]


def test_what_cannot_be_seen_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="_forward_hooks_of_tomorrow"):
        compat.hooks(nn.ReLU(), "_forward_hooks_of_tomorrow")
    monkeypatch.setattr(compat, "TorchDispatchMode", None)
    with pytest.raises(UserError, match="dispatch modes"):
        lc.certify(small_net().eval(), torch.rand(1, 1, 8, 8), torch.tensor([0]))


def test_global_hooks_are_seen_without_the_private_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "_global_hooks", None)
    assert not compat.has_global_hooks()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert compat.has_global_hooks() and compat.has_global_forward_hooks()
    finally:
        handle.remove()
    monkeypatch.setattr(compat, "_GLOBAL_FORWARD_HOOKS", ("_hooks_of_tomorrow",))
    assert compat.has_global_hooks()


def test_writes_are_counted_without_versions() -> None:
    class Content:
        """A tensor without a version."""

        def __init__(self, tensor: torch.Tensor) -> None:
            self.detach, self.is_inference = tensor.detach, tensor.is_inference

    tensor = torch.zeros(3)
    before = compat.write_count(tensor), compat.write_count(Content(tensor))  # type: ignore[arg-type]
    tensor.add_(1)
    after = compat.write_count(tensor), compat.write_count(Content(tensor))  # type: ignore[arg-type]
    assert before[0] != after[0] and before[1] != after[1]
    with torch.inference_mode():  # where PyTorch counts nothing
        scalar = torch.zeros((), dtype=torch.bfloat16)
        before = compat.write_count(scalar), 0
        assert compat.write_count(scalar.add_(1)) != before[0]


def test_classes_of_others_are_known_by_their_base() -> None:
    class Mine(compat.BatchNorm):
        pass

    assert isinstance(Mine(2), compat.BATCH_NORMS) and isinstance(Mine(2), compat.NORMS_WITH_STATISTICS)
    assert not isinstance(nn.InstanceNorm2d(2), compat.BATCH_NORMS)
    assert isinstance(nn.FeatureAlphaDropout(), compat.DROPOUTS)
