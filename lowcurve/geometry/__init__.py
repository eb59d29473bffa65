"""How steep and how curved is a model around given inputs, and how exact is that answer.

`curvature` measures gradient, Hessian and normalized curvature per sample, `stability` how gradients and
linear predictions change at a distance, `dataset` whole data sets; `tensors` holds the paper's tensor
tools.
"""
