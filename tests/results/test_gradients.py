"""The cosine of results/gradients, against vectors."""

import numpy as np
import pytest

from results.gradients import study


def test_the_cosine_of_gradients():
    """From the inner products, against the vectors themselves."""
    rng = np.random.default_rng(0)
    of_log = rng.normal(size=(4, 9))
    p, w = rng.random((2, 4))
    expected, target = (w * p) @ of_log, of_log.sum(0)
    wanted = expected @ target / np.linalg.norm(expected) / np.linalg.norm(target)
    (found,) = study.cosine(w[None], p[None], (of_log @ of_log.T)[None])
    assert found == pytest.approx(wanted)
