"""MaxRL (Maximum Likelihood Reinforcement Learning, arXiv 2602.02710) in plain PyTorch.

maxrl/README.md has the map of the files and the order in which to read them.

Letters, in every shape comment:
    P  prompts of the whole batch (P_local: of this rank)    B  rows of a tensor, P_local * N
    N  rollouts per prompt, K of them successes              L  tokens
    p  pass rate                                             T  truncation order, nothing else
    V  vocabulary, C classes                                 D  size of an attention head
"""

__version__ = "1.0.0"
