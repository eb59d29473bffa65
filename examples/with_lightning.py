"""Lightning: a callback adds the curvature penalty and logs β, γ and σ; the module validates with derivatives."""

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import lowcurve as lc
from lowcurve.data import load_dataset
from lowcurve.training.log import constants


class LowCurvature(pl.Callback):
    """Adds λβ Σβ + λγ Σ|log γ| to the loss of any module, and logs what it has made of β, γ and σ."""

    def __init__(self, beta=1e-4, gamma=1e-5):
        self.beta, self.gamma = beta, gamma

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        # Once per step, after gradients were summed, unscaled and accumulated, before they are clipped.
        lc.curvature_penalty(pl_module, self.beta, self.gamma).backward()

    def on_train_epoch_end(self, trainer, pl_module):
        for kind, layers in constants(pl_module).items():
            pl_module.log_dict({f"{kind}/{name}": value for name, value in layers.items()})


class Classifier(pl.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, _):
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def validation_step(self, batch, _):
        # Lightning validates in inference mode. lc.curvature, lc.attack and lc.certify step out of it by themselves;
        # derivatives of your own (torch.autograd.grad, lc.gradient_penalty) need Trainer(inference_mode=False).
        x, y = batch
        self.log("curvature", lc.curvature(self.model, x, y).curvature.median())
        self.log("accuracy under attack", lc.attack(self.model, x, y, "pgd", eps=0.1, steps=5).accuracy)

    def configure_optimizers(self):
        return torch.optim.SGD(lc.parameter_groups(self.model), lr=0.05, momentum=0.9)


def main(steps=10):
    x, y = load_dataset("digits").train.batch(slice(0, 256))
    net = lc.MODELS["convnet"](num_classes=10, in_channels=1, width=4, image_size=8)
    model, report = lc.convert(net, x[:1])  # before the trainer: its optimizer must see β and γ
    print(report.summary())
    trainer = pl.Trainer(
        max_steps=steps, max_epochs=-1, callbacks=[LowCurvature(beta=1e-3)], accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    batches, held_out = TensorDataset(x[:192], y[:192]), TensorDataset(x[192:208], y[192:208])
    trainer.fit(Classifier(model), DataLoader(batches, 32), DataLoader(held_out, 16))
    return model, {name: float(value) for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    print(main()[1])
