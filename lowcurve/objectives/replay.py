"""How is the same train-mode function evaluated twice? By replaying its buffers and its noise."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lowcurve.compat import DROPOUTS, cloned
from lowcurve.layers.spectral import SpectralNorm


class Replay:
    """The function that `model` is about to compute, kept for further inputs.

    In train mode a forward changes its own successor: batch norm moves its running statistics (which scale
    a γ-BN), dropout the generator. Make a `Replay` *before* the first forward; each call then starts from what
    that forward started from and works on copies, so the model's own buffers advance once per step and graphs
    of earlier passes stay valid. Batch statistics are the new input's own. Spectral norms are taken as they
    are: they must stand still meanwhile, as in `Passes`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        buffers = {
            f"{prefix}.{name}" if prefix else name: buffer
            for prefix, module in model.named_modules()
            if not isinstance(module, SpectralNorm)
            for name, buffer in module.named_buffers(recurse=False)
        }
        self.buffers = _copies(buffers)
        self.noisy = any(isinstance(module, DROPOUTS) for module in model.modules())
        self.gpu = next((p.device for p in model.parameters() if p.device.type == "cuda"), None)
        if self.noisy:
            self.noise = torch.random.get_rng_state()
            self.gpu_noise = torch.cuda.get_rng_state(self.gpu) if self.gpu else None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits at `x`."""
        copies = _copies(self.buffers)
        if not self.noisy:
            return functional_call(self.model, copies, (x,))
        with torch.random.fork_rng(devices=[self.gpu] if self.gpu else []):
            torch.random.set_rng_state(self.noise)
            if self.gpu is not None and self.gpu_noise is not None:
                torch.cuda.set_rng_state(self.gpu_noise, self.gpu)
            return functional_call(self.model, copies, (x,))


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(zip(tensors, cloned(list(tensors.values())), strict=True))
