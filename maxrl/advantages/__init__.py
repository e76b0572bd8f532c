"""Estimators: the formulas, the checks of what they are given, and the weight w(p) of each."""

from maxrl.advantages.formulas import ADVANTAGES
from maxrl.advantages.registry import RewardError, by_group, estimator
from maxrl.advantages.weights import weight

__all__ = ["ADVANTAGES", "RewardError", "by_group", "estimator", "weight"]
