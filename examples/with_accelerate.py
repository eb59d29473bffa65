"""accelerate: convert before `prepare`, add the penalty to the loss, measure the unwrapped model."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import lowcurve as lc
from lowcurve.data import load_dataset


def main(epochs=2):
    x, y = load_dataset("digits").train.batch(slice(0, 256))
    net = lc.MODELS["convnet"](num_classes=10, in_channels=1, width=4, image_size=8)
    model, _ = lc.convert(net, x[:1])  # a wrapped model is refused: what is inside would be converted behind its back
    optimizer = torch.optim.AdamW(lc.parameter_groups(model, weight_decay=0.01), lr=1e-2)
    accelerator = Accelerator(cpu=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(x, y), 32, shuffle=True))
    losses = []
    for _ in range(epochs):
        for images, labels in batches:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(images), labels) + lc.curvature_penalty(model, beta=1e-3)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    model = accelerator.unwrap_model(model)
    return losses, lc.curvature(model, x[:16].to(accelerator.device), y[:16].to(accelerator.device))


if __name__ == "__main__":
    losses, geometry = main()
    print(f"loss {losses[0]:.2f} to {losses[-1]:.2f}, median curvature {geometry.curvature.median():.2f}")
