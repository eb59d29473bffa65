"""How does a recipe become a network? By the text of a short program, which is run, and printed where it fails.

A recipe is plain data: {"seed", "shape", "batch", "dtype", "layout", "training", "nodes"}, and how it is converted:
{"convert": whether where an oracle leaves that open, "beta", "gamma", "spectral"}.
A node is {"op", "from": positions of the values that it reads (0 is the input, k the output of node k), "settings"}
and optionally "share" (call the module of an earlier node), "tie" (its weight), "inplace" (True, or "dangling": the
result is not used, the changed input is), "hook" (a key of `HOOKS`) and "weight" (a factor of its weights).
"""

import copy
import linecache
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowcurve as lc
from lowcurve.layers.chain import Chain
from lowcurve.layers.maxmin import AlmostOrthogonal2d, MaxMin
from tests.fuzz.operations import IMAGE, OPERATIONS

Recipe = dict[str, Any]

HOOKS = {
    "observe": "register_forward_hook(lambda module, inputs, output: None)",
    "double": "register_forward_hook(lambda module, inputs, output: 2 * output)",
    "round": "register_forward_pre_hook(lambda module, inputs: (torch.round(8 * inputs[0]) / 8,))",
}

LAYOUTS = {
    "contiguous": "torch.rand({batch}, {sizes})",
    "every second": "torch.rand(2 * {batch}, {sizes})[::2]",
    "reversed": "torch.rand({sizes}, {batch}).movedim(-1, 0)",
    "equal rows": "torch.rand(1, {sizes}).expand({batch}, {minus_ones})",
    "channels_last": "torch.rand({batch}, {sizes}).to(memory_format=torch.channels_last)",
}

_HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

import lowcurve as lc
from lowcurve.layers.chain import Chain
from lowcurve.layers.maxmin import AlmostOrthogonal2d, MaxMin

torch.manual_seed({seed})


class Net(nn.Module):
    def __init__(self):
        super().__init__()
"""


class Unfit(Exception):
    """A recipe that makes no network, or none that plain PyTorch can run and differentiate."""


@dataclass
class Case:
    """A network with inputs and labels, the program that made it, and its recipe."""

    recipe: Recipe
    source: str
    net: nn.Module
    x: Tensor
    y: Tensor

    def model(self) -> nn.Module:
        """Return a copy of the network in the recipe's mode."""
        return copy.deepcopy(self.net)

    def subject(self) -> nn.Module:
        """Return the network, converted where the recipe says so."""
        return eval(self._conversion(), {**_names(), "net": self.model(), "x": self.x})

    def program(self) -> str:
        """Return a program that makes `net`, `x`, `y` and `model`, the subject."""
        return f"{self.source}model = {self._conversion()}\n"

    def _conversion(self) -> str:
        settings = "init_beta={beta}, init_gamma={gamma}, spectral={spectral}".format(**self.recipe)
        return f"lc.convert(net, x, {settings})[0]" if self.recipe["convert"] else "net"


class Writer:
    """Writes the program node by node; every node is tried at once, so that the next one knows its input's shape."""

    def __init__(self, shape: list[int]) -> None:
        self.made: list[str] = []  # lines of __init__
        self.done: list[str] = []  # lines of forward
        self.changed: list[str] = []  # lines after the network is there
        self.modules: dict[int, nn.Module] = {}
        self.values: list[Tensor] = [torch.rand(2, *shape)]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample of the last value."""
        return tuple(self.values[-1].shape[1:])

    def add(self, node: dict[str, Any]) -> None:
        """Append a node, or raise `Unfit` and stay as it was."""
        number, operation = len(self.values), OPERATIONS[node["op"]]
        inputs = [self.values[position] for position in node["from"]]
        names = [f"v{position}" for position in node["from"]]
        try:
            if inputs[0].dim() - 1 not in operation.ranks or len(inputs) != operation.arity:
                raise Unfit(node["op"])
            text = operation.template.format(**_known(inputs[0]), **node["settings"], x=names[0], other=names[-1])
            with torch.no_grad():
                if operation.is_module:
                    value = self._call(node, number, text, inputs[0], names[0])
                else:
                    value = eval(text, _names() | dict(zip(names, (v.clone() for v in inputs), strict=True)))
                    self.done.append(f"v{number} = {text}")
        except Unfit:
            raise
        except Exception as error:
            raise Unfit(f"{node}: {error}") from error
        if value.shape[0] != 2 or not 1 < value.dim() < 5 or not value.numel() or not bool(value.isfinite().all()):
            raise Unfit(f"{node}: {tuple(value.shape)}")
        self.values.append(value)

    def _call(self, node: dict[str, Any], number: int, text: str, x: Tensor, name: str) -> Tensor:
        """Make the module, or take that of the node it is shared with, and call it."""
        if "share" in node:
            if node["share"] not in self.modules:
                raise Unfit("no such module")
            home, module = node["share"], self.modules[node["share"]]
        else:
            if node.get("inplace"):
                text = text.replace("()", "(inplace=True)") if text.endswith("()") else text[:-1] + ", inplace=True)"
            home, module = number, eval(text, _names())
        value = module.eval()(x.clone())
        if "share" not in node:
            self.modules[number] = module
            self.made.append(f"self.m{number} = {text}")
            self.changed += _changes(node, number, module, self.modules)
        if node.get("inplace") == "dangling":
            self.done += [f"self.m{home}({name})", f"v{number} = {name}"]
        else:
            self.done.append(f"v{number} = self.m{home}({name})")
        return value


def write(recipe: Recipe) -> str:
    """Return the program of a recipe."""
    writer = Writer(recipe["shape"])
    for node in recipe["nodes"]:
        writer.add(node)
    if len(writer.shape) != 1 or writer.shape[0] < 2:
        raise Unfit(f"the output {writer.shape} is no row of logits")
    sizes = recipe["shape"]
    filled = {
        "batch": recipe["batch"],
        "sizes": ", ".join(map(str, sizes)),
        "minus_ones": ", ".join("-1" for _ in sizes),
    }
    indent = " " * 8
    lines = [_HEAD.format(seed=recipe["seed"]) + "\n".join(indent + line for line in writer.made or ["pass"])]
    lines += ["", "    def forward(self, x):", f"{indent}v0 = x"]
    lines += [indent + line for line in writer.done] + [f"{indent}return v{len(writer.values) - 1}", "", ""]
    lines += ["net = Net()", *writer.changed]
    lines += [f"net.to({recipe['dtype']}).train({recipe['training']})"]
    lines += [f"x = {LAYOUTS[recipe['layout']].format(**filled)}.to({recipe['dtype']})"]
    lines += [f"y = torch.randint({writer.shape[0]}, ({recipe['batch']},))"]
    return "\n".join(lines) + "\n"


def build(recipe: Recipe) -> Case:
    """Run the program of a recipe; refuse what plain PyTorch cannot run and differentiate in both modes."""
    source, file = write(recipe), f"<network {recipe['seed']}>"
    program: Any = ModuleType("tests.fuzz.program")
    sys.modules[program.__name__] = program  # torch.compile asks for it
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    with torch.random.fork_rng():
        exec(compile(source, file, "exec"), vars(program))
    case = Case(recipe, source, program.net, program.x, program.y)
    for training in (True, False):
        model, x = case.model().train(training), case.x.clone().requires_grad_()
        try:
            logits = model(x.clone())
            logits.sum().backward()
        except (RuntimeError, ValueError) as error:
            raise Unfit(str(error)) from error
        if not bool(logits.isfinite().all()):
            raise Unfit("the logits are not finite")
    return case


def _names() -> dict[str, Any]:
    return {
        "torch": torch,
        "nn": nn,
        "F": F,
        "lc": lc,
        "Chain": Chain,
        "MaxMin": MaxMin,
        "AlmostOrthogonal2d": AlmostOrthogonal2d,
    }


def _known(value: Tensor) -> dict[str, Any]:
    """What templates may ask of the input."""
    sample = tuple(value.shape[1:])
    return {
        "channels": sample[0],
        "features": sample[-1],
        "sample": sample,
        "dims": len(sample) - 1,
        "plane": 2 if len(sample) == IMAGE else 1,
    }


def _changes(node: dict[str, Any], number: int, module: nn.Module, modules: dict[int, nn.Module]) -> list[str]:
    """Return the lines that change a module after it was made: statistics, weights, ties and hooks."""
    name, lines = f"net.m{number}", []
    for path, part in module.named_modules():
        here = f"{name}.{path}".rstrip(".").replace(".0", "[0]")
        if isinstance(part, nn.modules.batchnorm._NormBase):
            if part.running_var is not None:
                lines += [f"{here}.running_mean.normal_()", f"{here}.running_var.uniform_(0.3, 2.0)"]
            if part.affine:
                lines += [f"nn.init.uniform_({here}.weight, -2, 2)", f"nn.init.normal_({here}.bias)"]
        if isinstance(part, lc.LipschitzResidual | lc.LipschitzResidual2d):  # off the kinks of |WᵀW|
            lines.append(f"{here}.weight.data.add_(0.1 * torch.randn_like({here}.weight))")
        if "weight" in node and isinstance(getattr(part, "weight", None), nn.Parameter):
            lines.append(f"{here}.weight.data.mul_({node['weight']})")
    if "tie" in node:
        other = modules.get(node["tie"])
        if other is None or getattr(other, "weight", torch.empty(0)).shape != getattr(module, "weight", module).shape:
            raise Unfit("no such weight")
        lines.append(f"{name}.weight = net.m{node['tie']}.weight")
    if "hook" in node:
        lines.append(f"{name}.{HOOKS[node['hook']]}")
    return lines
