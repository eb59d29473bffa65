"""timm: any of its networks, converted; its own optimizers, given groups in which β and γ do not decay."""

import torch
import torch.nn.functional as F

import lowcurve as lc
from lowcurve.sources import imported

timm = imported("timm")  # as `import timm`, also where torchvision's compiled operators do not fit this PyTorch
create_optimizer_v2 = imported("timm.optim").create_optimizer_v2


def main(steps=3):
    x, y = torch.rand(8, 3, 32, 32), torch.arange(8) % 4
    net = timm.create_model("test_resnet", num_classes=4)  # or "resnet18", "convnext_atto", …, pretrained=True
    model, report = lc.convert(net, x[:1])
    print(report.summary())
    # Not create_optimizer_v2(model): timm looks at shapes alone, and a β per layer is no more than a number to it.
    optimizer = create_optimizer_v2(lc.parameter_groups(model, weight_decay=0.05), opt="adamw", lr=1e-3)
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y) + lc.curvature_penalty(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    plain = lc.fold(model.eval())  # torch.nn and timm alone
    return model, plain, x


if __name__ == "__main__":
    model, plain, x = main()
    print(f"folded logits differ by {(plain(x) - model(x)).abs().max():.1e}")
