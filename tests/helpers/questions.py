"""What a GPU would have to be waited for."""

from collections import Counter

from torch import bool as truth
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "lift_fresh",
    "masked_select",
    "unique",
    "_unique2",
    "equal",
)


class Questions(TorchDispatchMode):
    """Counts operations that bring numbers to the host or from it, and indices that are masks."""

    def __init__(self):
        super().__init__()
        self.asked = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function.overloadpacket.__name__
        masks = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype == truth for index in arguments[1]
        )
        if masks or name in WAITING:
            self.asked[name, arguments[0].dtype] += 1
        return function(*arguments, **(options or {}))
