"""TensorBoard: `lc.train` writes events by itself; a loop of your own logs β, γ and σ in three lines."""

import torch
import torch.nn.functional as F
from torch.utils.tensorboard import SummaryWriter

import lowcurve as lc
from lowcurve.data import load_dataset
from lowcurve.training.log import constants


def main(folder="runs/board", steps=5):
    x, y = load_dataset("digits").train.batch(slice(0, 64))
    net = lc.MODELS["convnet"](num_classes=10, in_channels=1, width=4, image_size=8)
    model, _ = lc.convert(net, x[:1])
    optimizer = torch.optim.SGD(lc.parameter_groups(model), lr=0.05, momentum=0.9)
    with SummaryWriter(folder) as board:
        for step in range(steps):
            loss = F.cross_entropy(model(x), y) + lc.curvature_penalty(model, beta=1e-3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            board.add_scalar("loss", loss.item(), step)
            for kind, layers in constants(model).items():  # beta, gamma, sigma
                for name, value in layers.items():
                    board.add_scalar(f"{kind}/{name}", value, step)
    return folder


if __name__ == "__main__":
    print(f"tensorboard --logdir {main()}")
