"""torchvision's transforms, or any callable on images: augment pixels of [0, 1], normalize inside the model."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import lowcurve as lc
from lowcurve.data import load_dataset


class Augmented(Dataset):
    """Images with a transform: torchvision.transforms.v2.RandomHorizontalFlip(), a Compose, a function of yours."""

    def __init__(self, x, y, transform):
        self.x, self.y, self.transform = x, y, transform

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.transform(self.x[index]), self.y[index]


def shift(image):
    """Stand for a transform: move an image by up to a pixel."""
    left, down = torch.randint(-1, 2, (2,)).tolist()
    return torch.roll(image, (left, down), dims=(-1, -2))


def main(transform=shift):
    x, y = load_dataset("digits").train.batch(slice(0, 128))
    net = lc.MODELS["convnet"](num_classes=10, in_channels=1, width=4, image_size=8)
    # v2.Normalize in the pipeline would change what a radius means. As a first layer it is part of the model: attacks
    # and certificates are then in pixels. Transforms that give other inputs than [0, 1] are refused by lc.attack.
    model, _ = lc.convert(nn.Sequential(lc.Normalize(mean=[0.3], std=[0.37]), net), x[:1])
    optimizer = torch.optim.SGD(lc.parameter_groups(model), lr=0.05, momentum=0.9)
    for images, labels in DataLoader(Augmented(x, y, transform), 32, shuffle=True):
        loss = F.cross_entropy(model(images), labels) + lc.curvature_penalty(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return lc.attack(model.eval(), x[:16], y[:16], "pgd", eps=0.1, steps=5)  # on images without augmentation


if __name__ == "__main__":
    print(f"accuracy under attack {main().accuracy:.2f}")
