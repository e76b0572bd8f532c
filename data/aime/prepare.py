"""AIME 2024 and 2025, 30 problems each:  python -m data.aime.prepare

Writes data/aime/2024.jsonl and 2025.jsonl, {"problem", "answer", "source"} a line, from the Hugging Face hub
(HuggingFaceH4/aime_2024, math-ai/aime25) or from copies: --source 2024=FILE --source 2025=FILE, JSONL or parquet with the
columns problem and answer. Answers are whole numbers from 0 to 999; leading zeros are dropped.
"""

from pathlib import Path

from data.common import refuse
from data.text_sets import HUB, Source, main


def whole(row: dict) -> dict:
    if not (row["answer"].isascii() and row["answer"].isdigit()):
        refuse(f"the answer {row['answer']!r} of {row['source']} is no whole number")
    return row | {"answer": str(int(row["answer"]))}


SOURCES = {
    "2024": Source(
        "aime2024",
        f"{HUB}/HuggingFaceH4/aime_2024/resolve/2fe88a2f1091d5048c0f36abc874fb997b3dd99a/data/"
        "train-00000-of-00001.parquet",
        "26139847601a5037c237d5928b195e7260ca8074cf4f264b794af42847f79ccf",
        convert=whole,
    ),
    "2025": Source(
        "aime2025",
        f"{HUB}/math-ai/aime25/resolve/563bb8404243c5f09de6ec262f2db674fe5bce9b/test.jsonl",
        "b4e273c02d3e7fe1b74b59eae768fc8230bfb0f79539890cb56f4361caac0331",
        convert=whole,
    ),
}

if __name__ == "__main__":
    main(None, __doc__, Path(__file__).parent, SOURCES)
