"""Which path does attention take where it is differentiated twice? The plain one: fused ones have no second derivative.

PyTorch's choice of a path is one for all threads. So it is changed by the first who asks and put back by the last;
whoever attends in between, in another thread, gets the same numbers by the plain path. From 2.15 on PyTorch also notes
the choice in a context variable, which has to be put back in the context where it was set: one of our own.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from threading import Lock

from torch.nn.attention import SDPBackend, sdpa_kernel

_lock = Lock()
_users = 0
_choice, _context = ExitStack(), copy_context()


@contextmanager
def plain_attention() -> Iterator[None]:
    """Context: `scaled_dot_product_attention` is computed by matrix products and a softmax.

    >>> import torch
    >>> with plain_attention(), plain_attention():
    ...     torch.backends.cuda.flash_sdp_enabled()
    False
    >>> torch.backends.cuda.flash_sdp_enabled()
    True
    """
    global _users
    with _lock:
        if _users == 0:
            _context.run(_choice.enter_context, sdpa_kernel(SDPBackend.MATH))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _context.run(_choice.close)
