r"""How often the boxed verdict and that of the published code differ, on responses of many forms:

    python -m tests.tasks.verdicts

Every response is a form of a number or formula in a sentence, right or wrong. The counts say how
the two rules differ, not how often a model would write so. results/speed/machines.md quotes them.
"""

# Answers as GSM8K has them, and ways to write one.
NUMBERS = ("18", "-4", "1234", "0.5", "7.25", "100", "3")
FORMS = r"""
{}
{}.0
${}$
\${}
{}\%
\text{{{}}}
{} \text{{ apples}}
x = {}
3 + 4 = {}
{{{}}}
{}^\circ
\frac{{{}}}{{1}}
{} dollars
+{}
\approx {}
"""
# Competition answers, and ways to write each of them.
FORMULAS = r"""
\frac{1}{2} ; \frac12 ; 1/2 ; 0.5 ; \dfrac{1}{2} ; .5 ; \tfrac{2}{4} ; 50\%
2\sqrt{2} ; \sqrt{8} ; 2\sqrt2 ; 2.828427 ; \frac{4}{\sqrt{2}}
(1,2) ; (1, 2) ; \left(1,2\right) ; 1,2 ; \{1,2\}
x^2+2x+1 ; (x+1)^2 ; 1+2x+x^2 ; (x+1)(x+1)
[0,1) ; [0, 1) ; \left[0,1\right) ; 0 \le x < 1
\frac{\pi}{4} ; \pi/4 ; 0.785398 ; 45^\circ ; \arctan 1
1,2,3 ; \{1,2,3\} ; 3,2,1 ; 1, 2, 3 ; 1 and 2 and 3
\text{east} ; east ; \text{East} ; \mathrm{east}
x=5 ; 5 ; x = 5 ; \text{x=5}
1024 ; 2^{10} ; 1,024 ; 1{,}024 ; 1024.0
3+4i ; 4i+3 ; 3 + 4\mathrm{i}
\begin{pmatrix}1\\2\end{pmatrix} ; \begin{bmatrix}1\\2\end{bmatrix} ; \begin{pmatrix} 1 \\ 2 \end{pmatrix}
"""  # noqa: E501
# @ is the answer, ~ another number.
SENTENCES = r"""
\boxed{@}
So the answer is $\boxed{@}$.
\[ \boxed{@} \]
#### @
The answer is @.
So the answer is @
The final answer is $@$. I hope it is correct.
Therefore she earns @ dollars.
**@**
Answer: @
$@$
I think it is ~ and the total is @ apples
\boxed{~}, or rather \boxed{@}
\boxed{@}, or rather \boxed{~}
\boxed{@}. Check: with ~ it would be too much.
First I wrote \boxed{~}, but no step of it holds. Now \boxed{@}.
\boxed{@}. The final answer is $~$.
\boxed{@
\boxed @
\boxed{\boxed{@}}
@ is what ~ would be, doubled.
The task says to use \boxed{}. It is @.
\fbox{@}
We have $~ < @$.
\[ x = @ \]
"""


def lines(text):
    return text.strip().split("\n")


def cases(formulas: bool):
    """(response, answer) of many forms: about half of the answers are right."""
    written = []
    if formulas:
        rows = [row.split(" ; ") for row in lines(FORMULAS)]
        written += [(form, row[0]) for row in rows for form in row]
        for row, other in zip(rows, rows[1:]):
            written += [(form, row[0]) for form in other[:3]]
    else:
        for gold in NUMBERS:
            for form in lines(FORMS):
                written += [(form.format(value), gold) for value in (gold, "1001")]
    for form, gold in written:
        for sentence in lines(SENTENCES):
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
    from maxrl.tasks.verifiers import verify_math_batch, verify_number, verify_published_batch

    for name, formulas, boxed in (
        ("GSM8K, numbers", False, lambda rs, gs: [*map(verify_number, rs, gs)]),
        ("mathematics, LaTeX", True, verify_math_batch),
    ):
        counts = count([*cases(formulas)], boxed, verify_published_batch)
        print(f"{name}: " + ", ".join(f"{what} {int(n):,}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
