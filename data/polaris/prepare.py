"""POLARIS-53K, the training set of the paper's Section 6.4:  python -m data.polaris.prepare

Writes data/polaris/train.jsonl, {"problem", "answer", "difficulty", "source"} a line, from the
Hugging Face hub (POLARIS-Project/Polaris-Dataset-53K) or from --source FILE with the columns
problem and answer.
"""

from data.mathematics import main

if __name__ == "__main__":
    main("polaris", __doc__)
