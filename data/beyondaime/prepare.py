"""BeyondAIME, 100 problems with whole numbers as answers:  python -m data.beyondaime.prepare

Writes data/beyondaime/test.jsonl, {"problem", "answer", "source"} a line, from the Hugging Face hub
(ByteDance-Seed/BeyondAIME) or from --source FILE with the columns problem and answer.
"""

from data.mathematics import main

if __name__ == "__main__":
    main("beyondaime", __doc__)
