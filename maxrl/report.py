"""`python -m maxrl.report`: a page on runs, see maxrl/study/report.py."""

from maxrl.study.report import script

if __name__ == "__main__":
    script()
