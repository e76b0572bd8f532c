"""MaxRL (Maximum Likelihood Reinforcement Learning, arXiv 2602.02710) in plain PyTorch.

maxrl/README.md has the map of the files and the order in which to read them.

Letters of shape comments (a file that needs more of them says so at its top):
    P  prompts of the whole batch (P_local: of this rank)    B  rows of a tensor, P_local * N
    N  rollouts per prompt, K of them successes              L  tokens
    p  pass rate                                             T  truncation order, nothing else
    V  vocabulary, C classes                                 D  size of an attention head
"""

from typing import Any

__version__ = "1.0.0"
__all__ = ["MaxRLConfig", "MaxRLTrainer"]


def __getattr__(name: str) -> Any:
    """Import the trainer when it is asked for: the package itself needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from maxrl.run.trl import trainer

    return getattr(trainer, name)
