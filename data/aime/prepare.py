"""AIME 2024 and 2025, 30 problems each:  python -m data.aime.prepare

Writes data/aime/2024.jsonl and 2025.jsonl, {"problem", "answer", "source"} a line, from the Hugging
Face hub (HuggingFaceH4/aime_2024, math-ai/aime25) or from copies with the columns problem and
answer: --source FILE FILE. Leading zeros of answers are dropped.
"""

from data.mathematics import main

if __name__ == "__main__":
    main("aime", __doc__)
