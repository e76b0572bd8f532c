"""`python -m maxrl.toy`: MaxRL without a model, see maxrl/study/toy.py."""

from maxrl.study.toy import main

if __name__ == "__main__":
    main()
