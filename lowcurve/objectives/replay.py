"""How is the same train-mode function evaluated twice? By replaying its buffers and its noise."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lowcurve.layers.spectral import SpectralNorm


class Replay:
    """The function that `model` is about to compute, kept for further inputs.

    In train mode a forward changes its own successor: batch norm moves its running statistics (which scale
    a γ-BN), dropout the generator. Make a `Replay` *before* the first forward; each call then starts from what
    that forward started from and works on copies, so the model's own buffers advance once per step and graphs
    of earlier passes stay valid. Batch statistics are the new input's own. Spectral norms are taken as they
    are: `advance` them first and keep them `held`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.buffers = [  # (a module's own buffers, the name of one, its value)
            (module._buffers, name, buffer.detach().clone())
            for module in model.modules()
            if not isinstance(module, SpectralNorm)
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self.noisy = any(isinstance(module, nn.modules.dropout._DropoutNd) for module in model.modules())
        self.gpu = next((p.device for p in model.parameters() if p.device.type == "cuda"), None)
        if self.noisy:
            self.noise = torch.random.get_rng_state()
            self.gpu_noise = torch.cuda.get_rng_state(self.gpu) if self.gpu else None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits at `x`."""
        with self._rewound():
            if not self.noisy:
                return self.model(x)
            with torch.random.fork_rng(devices=[self.gpu] if self.gpu else []):
                torch.random.set_rng_state(self.noise)
                if self.gpu is not None and self.gpu_noise is not None:
                    torch.cuda.set_rng_state(self.gpu_noise, self.gpu)
                return self.model(x)

    @contextmanager
    def _rewound(self) -> Iterator[None]:
        """Put copies of the kept buffers in the model's place; `torch.func.functional_call` takes far longer."""
        present = [owner[name] for owner, name, _ in self.buffers]
        for owner, name, value in self.buffers:
            owner[name] = value.clone()
        try:
            yield
        finally:
            for (owner, name, _), buffer in zip(self.buffers, present, strict=True):
                owner[name] = buffer
