"""`python -m maxrl.plots`: training curves and weights of estimators, see maxrl/study/plots.py."""

from maxrl.study.plots import script

if __name__ == "__main__":
    script()
