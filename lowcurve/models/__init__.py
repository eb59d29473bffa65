"""Which architectures are there? Ordinary nets, written once; the low-curvature one is `convert(net)`.

Every entry of `MODELS` takes the same keywords, so that a recipe may swap one for another:

* `num_classes`: number of logits;
* `in_channels`: channels of an image, or the length of a flat vector;
* `width`: channels of the first layer (64 in the paper), or units of each hidden layer of the MLP;
* `residual`: how a residual branch is joined, `"mean"` (the paper's released code) or `"sum"` (the textbook);
  nets without branches, the certifiable one, which always averages, and the transformer, which always adds, accept it
  and have no use for it;
* `activation`: a factory without arguments, called once per activation site;
* `image_size`: side, `(height, width)`, or `()` for flat vectors; only nets that flatten depend on it.
"""

from collections.abc import Callable

from torch import nn

from lowcurve.models.convnet import convnet
from lowcurve.models.lipnet import lipnet
from lowcurve.models.mlp import mlp
from lowcurve.models.resnet import resnet18, resnet34
from lowcurve.models.vgg import vgg11
from lowcurve.models.vit import vit

MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": resnet18,
    "resnet34": resnet34,
    "vgg11": vgg11,
    "mlp": mlp,
    "convnet": convnet,
    "lipnet": lipnet,
    "vit": vit,
}
