"""What listens to a module? Its hooks, which must go with it where another module takes its place."""

from collections import OrderedDict

from torch import nn

# Attributes of nn.Module, by what calls them: dictionaries from a handle's number to a hook, or to a flag of that hook.
_ON_CALL = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_pre_hooks",
    "_backward_hooks",
)
_ON_STATE = ("_state_dict_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")


def carry_hooks(old: nn.Module, new: nn.Module) -> None:
    """Move the hooks of `old` to `new`, behind those that `new` has.

    Where `new` holds `old` (a batch norm inside a Lipschitz one), those about the state stay with the state they know.
    """
    inside = any(part is old for part in new.modules())
    for name in _ON_CALL if inside else (*_ON_CALL, *_ON_STATE):
        hooks = getattr(old, name)
        if hooks:
            getattr(new, name).update(hooks)
            if inside:
                setattr(old, name, OrderedDict())
    if old._is_full_backward_hook is not None:
        new._is_full_backward_hook = old._is_full_backward_hook
