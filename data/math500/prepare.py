"""MATH-500:  python -m data.math500.prepare

Writes data/math500/test.jsonl, {"problem", "answer", "subject", "level", "source"} a line, from the Hugging Face hub
(HuggingFaceH4/MATH-500) or from --source FILE, JSONL or parquet with the columns problem and answer.
"""

from pathlib import Path

from data.text_sets import HUB, Source, main

SOURCES = {
    "test": Source(
        "math500",
        f"{HUB}/HuggingFaceH4/MATH-500/resolve/6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be/test.jsonl",
        "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
        keep=("subject", "level"),
    )
}

if __name__ == "__main__":
    main(None, __doc__, Path(__file__).parent, SOURCES)
