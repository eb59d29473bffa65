"""Which truths are held against a network? A table: the name of each oracle, what it checks, what it prefers to see."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz import attacks, certificates, gradients, measures, surgery
from tests.fuzz.build import Case
from tests.fuzz.recipes import DTYPES


@dataclass(frozen=True)
class Oracle:
    """`check` raises a `Finding`, or a `UserError` where the library refuses the network.

    `call` ends the program that reproduces a finding. `networks` is how many the test suite sees, 0 where only long
    hunts have the time, `preferred` are operations that are drawn more often.
    """

    check: Callable[[Case], None]
    networks: int
    call: str
    preferred: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES


_PRECISE = ("torch.float32", "torch.float32", "torch.float32", "torch.float64")
_LAYERS = ("lipschitz", "centered", "chain", "batchnorm", "linear", "conv", "relu", "leaky", "hardtanh", "add", "cat")
_OURS = (*_LAYERS, "block", "block2d")
_REPLACED = ("relu", "leaky", "relu6", "hardtanh", "F.relu", "relu_", "F.leaky_relu", *_LAYERS)
_KNOWN = (
    *("linear", "conv", "batchnorm", "lipschitz", "avgpool", "maxpool", "adaptive", "flatten", "view", "identity"),
    *("centered", "softplus", "relu", "leaky", "elu", "tanh", "sigmoid", "silu", "gelu", "F.relu", "relu_", "chain"),
    *("add", "average", "cat", "twice", "scale", "shift", "offset", "dropout", "add_", "divided", "F.softplus"),
    *("block", "block2d", "unshuffle", "zeropad", "maxmin", "orthogonal", "learned gelu", "learned silu"),
)

_BACKWARD = "x.requires_grad_()\nmodel(x.clone()).sum().backward()\nprint(x.grad, [p.grad for p in model.parameters()])"
_TWICE = (
    "x.requires_grad_()\n(slope,) = torch.autograd.grad(model(x.clone()).sin().sum(), x, create_graph=True)\n"
    "print(torch.autograd.grad(slope.square().sum(), [x, *model.parameters()], allow_unused=True))"
)
_FUNC = "print(torch.func.grad(lambda x: model(x.clone()).sum())(x))"
_COMPILED = f"model = torch.compile(model, backend={{!r}})\n{_BACKWARD}"
_LIMIT = "print(net(x.clone()), lc.convert(net, x, init_beta=1e30, init_gamma=1e30, spectral=False)[0](x.clone()))"
_FOLD = "print(model.eval()(x.clone()), lc.fold(model)(x.clone()))"
_CURVATURE = "print(lc.curvature(model, x, y))"
_NORMS = "print({name: lc.operator_norm(m, x.shape[2:]) for name, m in net.named_modules() if hasattr(m, 'weight')})"
_CERTIFY = "model.eval()\nprint(lc.certify(model, x, model(x.clone()).argmax(1)))"
_EXPLAIN = "print(lc.explanation_bound(model.eval(), x, y, 0.3, of='loss'))"
_ATTACK = "print([lc.attack(model, x, y, name, eps=0.1, steps=7) for name in lc.ATTACKS])"

ORACLES: dict[str, Oracle] = {
    "gradients": Oracle(gradients.first_order, 120, _BACKWARD, _OURS),
    "second derivatives": Oracle(gradients.second_order, 80, _TWICE, _OURS),
    "fast second derivatives": Oracle(gradients.fast_second_order, 60, _TWICE, _OURS),
    "transforms": Oracle(gradients.transforms, 40, _FUNC, _OURS),
    "limit": Oracle(surgery.limit, 150, _LIMIT, _REPLACED),
    "fold": Oracle(surgery.fold, 80, _FOLD, _OURS),
    "compiled": Oracle(surgery.compiled, 3, _COMPILED.format("aot_eager"), _OURS, _PRECISE),
    "inductor": Oracle(surgery.inductor, 0, _COMPILED.format("inductor"), _OURS, _PRECISE),
    "curvature": Oracle(measures.curvature, 25, _CURVATURE, dtypes=_PRECISE),
    "norms": Oracle(measures.norms, 60, _NORMS, ("linear", "conv"), _PRECISE),
    "bounds": Oracle(measures.bounds, 50, "print(lc.bounds(model, tuple(x.shape[1:])))", _KNOWN, _PRECISE),
    "certificates": Oracle(certificates.certificates, 40, _CERTIFY, _KNOWN, _PRECISE),
    "explanations": Oracle(certificates.explanations, 60, _EXPLAIN, _KNOWN, _PRECISE),
    "attacks": Oracle(attacks.attacks, 10, _ATTACK, _OURS, _PRECISE),
}
