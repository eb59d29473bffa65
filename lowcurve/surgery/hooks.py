"""What listens to a module? Its hooks, which must go with it where another module takes its place."""

from collections import OrderedDict

from torch import nn

from lowcurve.compat import CALL_HOOKS, STATE_HOOKS, hooks, keep_kind_of_backward_hooks


def carry_hooks(old: nn.Module, new: nn.Module) -> None:
    """Move the hooks of `old` to `new`, behind those that `new` has.

    Where `new` holds `old` (a batch norm inside a Lipschitz one), those about the state stay with the state they know.
    """
    inside = any(part is old for part in new.modules())
    for name in CALL_HOOKS if inside else (*CALL_HOOKS, *STATE_HOOKS):
        moved = hooks(old, name)
        if moved:
            hooks(new, name).update(moved)
            if inside:
                setattr(old, name, OrderedDict())
    keep_kind_of_backward_hooks(old, new)
