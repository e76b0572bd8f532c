"""train.py with MaxRL's expected gradient of order T = 1,023, which has no sampling noise.

    PYTHONPATH=. python results/images/expected.py results/images/recipe.py:images_laptop ...

The gradient of the series to order T is w_T(p) grad p = (1 - (1 - p)^T) grad log p (Eq. 8), and in
a classifier p is known. So it is cross-entropy's gradient with this factor as the advantage of the
label, and every other word means what it means to train.py.
"""

import sys
from unittest import mock

import torch

import train

ORDER = 1023  # that of Algorithm 1 with 1,024 draws


def expected(cfg, draws, rewards: torch.Tensor) -> torch.Tensor:
    """Return 1 - (1 - p)^T (P_local, 1), where p is the probability of an image's label."""
    p = draws.mean_log_probs().double().exp()  # (P_local, 1): the demonstration is the label
    return -torch.expm1(ORDER * torch.log1p(-p))


if __name__ == "__main__":
    with mock.patch.object(train, "estimate", expected):
        train.main(sys.argv[1:])
