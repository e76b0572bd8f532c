"""MaxRL (Maximum Likelihood Reinforcement Learning, arXiv 2602.02710) in plain PyTorch.

advantages.py is the method, losses.py the objective, policy.py and sampler.py the rollouts, train.py the loop.

Letters, in every shape comment:
    P  prompts of the whole batch (P_local: of this rank)     B  rows of a tensor, P_local * N
    N  rollouts per prompt, K of them successes               L  tokens, V vocabulary, D size of an attention head
    p  pass rate, T truncation order (and nothing else), C classes
"""

__version__ = "0.1.0"
