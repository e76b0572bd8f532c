"""The streams of random numbers of a run.

Each is seeded by a list of its own, so that no two streams of a run coincide, and by nothing that
depends on batching or on the number of ranks. (NumPy pads seeds with zeros, so that `classes` is
the stream of a first prompt's rollouts; a classifier has none.)
"""

import numpy as np

AUGMENTATION = 1
MINIBATCHES = 2
PROMPT_ORDER = 3


def rollouts(seed: int, step: int, prompt: int) -> np.random.Generator:
    """The noise of a prompt's rollouts; `prompt` is its position in the batch of all ranks."""
    return np.random.default_rng([seed, step, prompt])


def classes(seed: int, step: int) -> np.random.Generator:
    """The noise of the classes drawn for the images of a step."""
    return np.random.default_rng([seed, step])


def augmentation(seed: int, step: int, position: int) -> list[int]:
    """The seed of what is random in an example: position in the batch of all ranks."""
    return [seed, step, position, AUGMENTATION]


def minibatches(seed: int, step: int, rank: int, update_pass: int) -> np.random.Generator:
    """The division of a rank's prompts into the minibatches of one pass."""
    return np.random.default_rng([seed, step, rank, update_pass, MINIBATCHES])


def prompt_order(seed: int, epoch: int) -> np.random.Generator:
    """The order of the prompts in an epoch."""
    # Without the tag this would be the noise of a first prompt.
    return np.random.default_rng([seed, epoch, 0, PROMPT_ORDER])
