"""BeyondAIME, 100 problems with whole numbers as answers:  python -m data.beyondaime.prepare

Writes data/beyondaime/test.jsonl, {"problem", "answer", "source"} a line, from the Hugging Face hub
(ByteDance-Seed/BeyondAIME) or from --source FILE, JSONL or parquet with the columns problem and answer.
"""

from pathlib import Path

from data.text_sets import HUB, PARQUET, Source, main

SOURCES = {
    "test": Source(
        "beyondaime", f"{HUB}/ByteDance-Seed/BeyondAIME/{PARQUET}/default/test/0000.parquet"
    )
}

if __name__ == "__main__":
    main(None, __doc__, Path(__file__).parent, SOURCES)
