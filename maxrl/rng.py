"""The streams of random numbers of a run.

Each is seeded by a list of its own shape or tag, so that no two streams coincide, and by nothing
that depends on batching or on the number of ranks.
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
    # NumPy pads seeds with zeros: without the tag this would be the noise of a first prompt.
    return np.random.default_rng([seed, epoch, 0, PROMPT_ORDER])
