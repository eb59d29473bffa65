"""Hugging Face Trainer: a mixin adds the penalty in `compute_loss`, and keeps β and γ from weight decay."""

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import lowcurve as lc
from lowcurve.data import load_dataset
from lowcurve.training.log import constants


class LowCurvature:
    """Put it before Trainer, or before a Trainer of your own: class Mine(LowCurvature, Trainer)."""

    curvature = {"beta": 1e-4, "gamma": 1e-5}

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        if model.training:  # evaluation reports the plain loss
            # Trainer sums the losses of `gradient_accumulation_steps` batches: each brings its share.
            loss = loss + lc.curvature_penalty(model, **self.curvature) / self.args.gradient_accumulation_steps
        return (loss, outputs) if return_outputs else loss

    def create_optimizer(self, *args):
        # Trainer would let β and γ decay, which pulls their logarithms to 0.
        groups = lc.parameter_groups(self.model, weight_decay=self.args.weight_decay)
        self.optimizer = torch.optim.AdamW(groups, lr=self.args.learning_rate)
        return self.optimizer

    def log(self, logs, *args):
        found = constants(self.model)
        means = {kind: sum(layers.values()) / len(layers) for kind, layers in found.items() if layers}
        super().log({**logs, **means}, *args)


class LowCurvatureTrainer(LowCurvature, Trainer):
    pass


def main(steps=4, accumulate=1):
    x, y = load_dataset("digits").train.batch(slice(0, 64))
    config = ViTConfig(
        image_size=8, patch_size=4, num_channels=1, num_labels=10, hidden_size=16, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=32, hidden_act="gelu",
    )  # fmt: skip
    model, report = lc.convert(ViTForImageClassification(config), x[:1])
    print(report.summary())
    settings = TrainingArguments(
        "runs/vit", max_steps=steps, per_device_train_batch_size=16, learning_rate=1e-3, weight_decay=0.01,
        gradient_accumulation_steps=accumulate, logging_steps=1, report_to=[], save_strategy="no", use_cpu=True,
        disable_tqdm=True, lr_scheduler_type="constant",
    )  # fmt: skip
    samples = [{"pixel_values": image, "labels": label} for image, label in zip(x, y, strict=True)]
    trainer = LowCurvatureTrainer(model, settings, train_dataset=samples)
    trainer.train()
    return trainer, model


if __name__ == "__main__":
    print(main()[0].state.log_history[-2])
