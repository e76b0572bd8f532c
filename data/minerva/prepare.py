"""Minerva's mathematics questions, 272 of them:  python -m data.minerva.prepare

Writes data/minerva/test.jsonl, {"problem", "answer", "source"} a line, from the Hugging Face hub (math-ai/minervamath) or
from --source FILE, JSONL or parquet with the columns question and answer.
"""

from pathlib import Path

from data.text_sets import HUB, PARQUET, Source, main

SOURCES = {
    "test": Source(
        "minerva",
        f"{HUB}/math-ai/minervamath/{PARQUET}/default/test/0000.parquet",
        problem="question",
    )
}

if __name__ == "__main__":
    main(None, __doc__, Path(__file__).parent, SOURCES)
