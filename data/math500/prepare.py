"""MATH-500:  python -m data.math500.prepare

Writes data/math500/test.jsonl, {"problem", "answer", "subject", "level", "source"} a line, from the
Hugging Face hub (HuggingFaceH4/MATH-500) or from --source FILE with the columns problem and answer.
"""

from data.mathematics import main

if __name__ == "__main__":
    main("math500", __doc__)
