"""captum: any attribution of a converted model, and how much a small push changes it."""

from captum.attr import IntegratedGradients, Saliency

import lowcurve as lc
from lowcurve.attacks.explanations import explanation_stability
from lowcurve.data import load_dataset


def main():
    x, y = load_dataset("digits").train.batch(slice(0, 16))
    net = lc.MODELS["convnet"](num_classes=10, in_channels=1, width=4, image_size=8)
    model = lc.convert(net, x[:1])[0].eval()
    images = x.clone().requires_grad_()
    saliency = Saliency(model).attribute(images, target=y, abs=False)
    integrated = IntegratedGradients(model).attribute(images, target=y, n_steps=8)
    # How much can such a gradient (of one logit) change in a ball, by proof; and by random noise?
    bound = lc.explanation_bound(model, x[:2], y[:2], 0.05, of=int(y[0])).change
    return saliency, integrated, bound, explanation_stability(model, x[:4], y[:4])


if __name__ == "__main__":
    _, _, bound, stability = main()
    print(f"within 0.05 gradients change by at most {bound.max():.3g}; with noise {stability.similarity.min():.2f}")
