"""POLARIS-53K, the training set of the paper's section 6.4:  python -m data.polaris.prepare

Writes data/polaris/train.jsonl, {"problem", "answer", "difficulty", "source"} a line, from the Hugging Face hub
(POLARIS-Project/Polaris-Dataset-53K) or from --source FILE, JSONL or parquet with the columns problem and answer.
"""

from pathlib import Path

from data.text_sets import HUB, PARQUET, Source, main

SOURCES = {
    "train": Source(
        "polaris",
        f"{HUB}/POLARIS-Project/Polaris-Dataset-53K/{PARQUET}/default/train/0000.parquet",
        keep=("difficulty",),
    )
}

if __name__ == "__main__":
    main(None, __doc__, Path(__file__).parent, SOURCES)
