r"""How often the boxed verdict and that of the published code differ, on responses of many forms:

    python tests/tasks/verdicts.py

Every response is a form of a number or formula in a sentence, right or wrong. The counts say how
the two rules differ, not how often a model would write so. results/speed/machines.md quotes them.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

NUMBERS = ["18", "-4", "1234", "0.5", "7.25", "100", "3"]  # answers as GSM8K has them
FORMS = [
    "{}",
    "{}.0",
    "${}$",
    r"\${}",
    r"{}\%",
    r"\text{{{}}}",
    r"{} \text{{ apples}}",
    "x = {}",
    "3 + 4 = {}",
    "{{{}}}",
    r"{}^\circ",
    r"\frac{{{}}}{{1}}",
    "{} dollars",
    "+{}",
    r"\approx {}",
]
FORMULAS = {  # competition answers, and ways to write each of them
    r"\frac{1}{2}": [r"\frac12", "1/2", "0.5", r"\dfrac{1}{2}", ".5", r"\tfrac{2}{4}", r"50\%"],
    r"2\sqrt{2}": [r"\sqrt{8}", r"2\sqrt2", "2.828427", r"\frac{4}{\sqrt{2}}"],
    "(1,2)": ["(1, 2)", r"\left(1,2\right)", "1,2", r"\{1,2\}"],
    "x^2+2x+1": ["(x+1)^2", "1+2x+x^2", "(x+1)(x+1)"],
    "[0,1)": ["[0, 1)", r"\left[0,1\right)", r"0 \le x < 1"],
    r"\frac{\pi}{4}": [r"\pi/4", "0.785398", r"45^\circ", r"\arctan 1"],
    "1,2,3": [r"\{1,2,3\}", "3,2,1", "1, 2, 3", "1 and 2 and 3"],
    r"\text{east}": ["east", r"\text{East}", r"\mathrm{east}"],
    "x=5": ["5", "x = 5", r"\text{x=5}"],
    "1024": ["2^{10}", "1,024", "1{,}024", "1024.0"],
    r"3+4i": ["4i+3", r"3 + 4\mathrm{i}"],
    r"\begin{pmatrix}1\\2\end{pmatrix}": [
        r"\begin{bmatrix}1\\2\end{bmatrix}",
        r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
    ],
}
SENTENCES = [  # @ the answer, ~ another number
    r"\boxed{@}",
    r"So the answer is $\boxed{@}$.",
    r"\[ \boxed{@} \]",
    "#### @",
    "The answer is @.",
    "So the answer is @",
    "The final answer is $@$. I hope it is correct.",
    "Therefore she earns @ dollars.",
    "**@**",
    "Answer: @",
    "$@$",
    "I think it is ~ and the total is @ apples",
    r"\boxed{~}, or rather \boxed{@}",
    r"\boxed{@}, or rather \boxed{~}",
    r"\boxed{@}. Check: with ~ it would be too much.",
    r"First I wrote \boxed{~}, but no step of it holds. Now \boxed{@}.",
    r"\boxed{@}. The final answer is $~$.",
    r"\boxed{@",
    r"\boxed @",
    r"\boxed{\boxed{@}}",
    "@ is what ~ would be, doubled.",
    r"The task says to use \boxed{}. It is @.",
    r"\fbox{@}",
    "We have $~ < @$.",
    r"\[ x = @ \]",
]


def cases(formulas: bool):
    """(response, answer) of many forms: about half of the answers are right."""
    if formulas:
        written = [(form, gold) for gold, forms in FORMULAS.items() for form in (gold, *forms)]
        written += [
            (form, gold)
            for gold, other in zip(FORMULAS, [*FORMULAS][1:])
            for form in (other, *FORMULAS[other][:2])
        ]
    else:
        written = [
            (form.format(value), gold)
            for gold in NUMBERS
            for form in FORMS
            for value in (gold, NUMBERS[-2] + "1")
        ]
    for form, gold in written:
        for sentence in SENTENCES:
            yield "".join({"@": form, "~": "62"}.get(letter, letter) for letter in sentence), gold


def count(rows: list, boxed, published) -> dict[str, int]:
    responses, answers = zip(*rows)
    pairs = list(zip(boxed(responses, answers), published(responses, answers)))
    return {
        "cases": len(pairs),
        "agree": sum(a == b for a, b in pairs),
        "boxed 1": sum(a for a, _ in pairs),
        "published 1, boxed 0": pairs.count((0, 1)),
        "published 0, boxed 1": pairs.count((1, 0)),
    }


def main():
    from maxrl.verifiers import verify_math_batch, verify_number, verify_published_batch

    for name, formulas, boxed in (
        ("GSM8K, numbers", False, lambda rs, gs: [*map(verify_number, rs, gs)]),
        ("mathematics, LaTeX", True, verify_math_batch),
    ):
        counts = count([*cases(formulas)], boxed, verify_published_batch)
        print(f"{name}: " + ", ".join(f"{what} {int(n):,}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
