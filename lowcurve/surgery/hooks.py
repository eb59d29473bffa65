"""What happens to the hooks of a module that is replaced? Its successor gets them."""

from torch import nn

_HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks"),
)


def carry_hooks(old: nn.Module, new: nn.Module) -> None:
    """Give `new` the hooks that users registered on `old`, in the place of its own."""
    for name in _HOOKS:
        setattr(new, name, getattr(old, name).copy())
    new._is_full_backward_hook = old._is_full_backward_hook
