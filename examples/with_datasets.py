"""Hugging Face `datasets`: pixels of [0, 1] by `with_format` and one division, for training and for measures."""

import torch
import torch.nn.functional as F
from datasets import Array3D, ClassLabel, Dataset, Features
from torch.utils.data import DataLoader

import lowcurve as lc
from lowcurve.data import load_dataset


def pixels(batch):
    """Return images of 0 to 255 as pixels of [0, 1]; what is an Image() comes as (height, width, channels): permute."""
    return {"x": batch["image"].float() / 255, "y": batch["label"]}


def main():
    digits = load_dataset("digits").train  # or datasets.load_dataset("cifar10", split="train")
    x, y = digits.batch(slice(0, 128))
    features = Features({"image": Array3D((1, 8, 8), "uint8"), "label": ClassLabel(10)})
    data = Dataset.from_dict({"image": (255 * x).byte().numpy(), "label": y.numpy()}, features=features)
    data = data.with_format("torch")

    net = lc.MODELS["convnet"](num_classes=10, in_channels=1, width=4, image_size=8)
    model, _ = lc.convert(net, pixels(data[:1])["x"])
    optimizer = torch.optim.SGD(lc.parameter_groups(model), lr=0.05, momentum=0.9)
    for batch in DataLoader(data, 32, shuffle=True):
        batch = pixels(batch)
        loss = F.cross_entropy(model(batch["x"]), batch["y"]) + lc.curvature_penalty(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    batch = pixels(data[:16])
    return data, lc.curvature(model, batch["x"], batch["y"])


if __name__ == "__main__":
    print(f"median curvature {main()[1].curvature.median():.2f}")
