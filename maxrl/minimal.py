"""MaxRL in one file: a transformer with random weights learns to add, told only right or wrong.

A prompt is two digits, and the right response is their sum: 1 1 for the prompt 4 7. Each step is a
step of Algorithm 1 in arXiv 2602.02710: draw N responses to each of P prompts, judge them, and
raise the log-probability of each response in proportion to its advantage. The three methods differ
only in this advantage:

    python -m maxrl.minimal maxrl        or grpo, or rloo; half a minute on one core
"""

import argparse

import torch
from torch import Tensor, nn

P = 32  # prompts of a step
N = 16  # rollouts of each prompt, so that a step has B = P N rows; K of the N succeed
V = 10  # vocabulary: the tokens are the ten digits
E = 64  # hidden size
STEPS = 450
RATE = 1e-3

# There is no test set: the model sees every prompt, but never a right response unless it draws it.
DIGITS = torch.arange(V)
PROMPTS = torch.cartesian_prod(DIGITS, DIGITS)  # (100, 2)
SUMS = PROMPTS.sum(dim=1)  # (100,)
ANSWERS = torch.stack([SUMS // 10, SUMS % 10], dim=1)  # (100, 2)


class Transformer(nn.Module):
    """A small GPT: from tokens (B, L) to the logits (B, L, V) of the token after each of them."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(V, E)
        self.position = nn.Embedding(4, E)  # two tokens ask and two answer
        # Dropout would score responses with other probabilities than those they were drawn with.
        block = nn.TransformerEncoderLayer(E, 4, 4 * E, dropout=0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, num_layers=2)
        self.head = nn.Linear(E, V)

    def forward(self, tokens: Tensor) -> Tensor:
        L = tokens.shape[1]
        x = self.token(tokens) + self.position.weight[:L]  # (B, L, E)
        # Without this mask a position would see the very token that it has to predict.
        causal = nn.Transformer.generate_square_subsequent_mask(L)  # (L, L)
        x = self.blocks(x, mask=causal)  # (B, L, E)
        return self.head(x)  # (B, L, V)


@torch.no_grad()
def sample(model: nn.Module, prompts: Tensor) -> Tensor:
    """Draw a response z from m(z | x) for each prompt x: from (B, 2) to (B, 2)."""
    tokens = prompts
    for _ in range(2):
        logits = model(tokens)[:, -1]  # (B, V)
        # The gradient is right only for draws from m itself: temperature 1, and no token excluded.
        probabilities = logits.softmax(dim=-1)  # (B, V)
        token = torch.multinomial(probabilities, 1)  # (B, 1)
        tokens = torch.cat([tokens, token], dim=1)
    return tokens[:, 2:]


def log_probs(model: nn.Module, prompts: Tensor, responses: Tensor) -> Tensor:
    """log m(z | x) (B,) of responses z (B, 2) to prompts x (B, 2)."""
    tokens = torch.cat([prompts, responses], dim=1)  # (B, 4)
    # Each token is predicted one position earlier: z, at positions 2 and 3, at 1 and 2.
    logits = model(tokens)[:, 1:3]  # (B, 2, V)
    log_m = logits.log_softmax(dim=-1)  # (B, 2, V)
    chosen = log_m.gather(2, responses.unsqueeze(2))  # (B, 2, 1)
    # A product of two probabilities is a sum of logarithms.
    return chosen.sum(dim=(1, 2))


def advantages(rewards: Tensor, method: str) -> Tensor:
    """The advantages A (P, N) of rewards (P, N) that are 0 or 1.

    On average a prompt with pass rate p then adds w(p) grad p to the gradient. The weight w(p),
    here for many rollouts (Table 2), says how much hard prompts count.
    """
    mean = rewards.mean(dim=1, keepdim=True)  # (P, 1)  K / N, an estimate of p
    std = rewards.std(dim=1, keepdim=True)  # (P, 1)
    # Subtracting the mean takes noise away; the divisor sets the weight w(p).
    centered = rewards - mean  # (P, N)
    return {
        # w(p) = 1. The factor turns this into the reward minus the mean of the N - 1 others.
        "rloo": centered * N / (N - 1),
        # w(p) = 1 / sqrt(p (1 - p)). The 1e-6 prevents 0 / 0 if K is 0 or N.
        "grpo": centered / (std + 1e-6),
        # w(p) = 1 / p. The clamp prevents 0 / 0 if K is 0.
        "maxrl": centered / mean.clamp(min=1 / N),
    }[method]


@torch.no_grad()
def pass_rates(model: nn.Module) -> Tensor:
    """The pass rate p (100,) of every prompt."""
    # One response is right, so p is its probability, and nothing has to be drawn.
    return log_probs(model, PROMPTS, ANSWERS).exp()


def train(method: str):
    """Algorithm 1 on a new model, with pass rates printed on the way."""
    model = Transformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for step in range(1, STEPS + 1):
        # The N rollouts of a prompt are N consecutive rows, so that view(P, N) groups them.
        chosen = torch.randperm(len(PROMPTS))[:P]  # (P,)
        rows = chosen.repeat_interleave(N)  # (B,)
        prompts = PROMPTS[rows]  # (B, 2)
        responses = sample(model, prompts)  # (B, 2)

        # All that is ever told: right or wrong. One wrong digit is as wrong as two.
        right = (responses == ANSWERS[rows]).all(dim=1)  # (B,)
        rewards = right.float().view(P, N)
        A = advantages(rewards, method)  # (P, N)

        # Algorithm 1, line 8: the mean over prompts of (1/N) sum_i A_i grad log m(z_i | x).
        log_m = log_probs(model, prompts, responses).view(P, N)
        loss = -(A * log_m).mean()  # the minus because Adam descends
        optimizer.zero_grad()
        loss.backward()

        # Line 9. The rate falls, so that the last steps do not fluctuate.
        rate = RATE * (1 - (step - 1) / STEPS)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()

        if step % 50 == 0 or step == STEPS:
            p = pass_rates(model)  # (100,)
            solved = (p > 0.5).sum()  # right more often than not
            print(f"step {step}: pass rate {p.mean():.3f}, {solved} of 100 sums solved")


def main(words: list[str] | None = None):
    """Train with the method and the seed on the command line."""
    parser = argparse.ArgumentParser("python -m maxrl.minimal")
    methods = ["maxrl", "grpo", "rloo"]
    parser.add_argument("method", nargs="?", default="maxrl", choices=methods)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    torch.manual_seed(args.seed)
    train(args.method)


if __name__ == "__main__":
    main()
