"""Minerva's mathematics questions, 272 of them:  python -m data.minerva.prepare

Writes data/minerva/test.jsonl, {"problem", "answer", "source"} a line, from the Hugging Face hub
(math-ai/minervamath) or from --source FILE with the columns question and answer.
"""

from data.mathematics import main

if __name__ == "__main__":
    main("minerva", __doc__)
