"""MaxRL in one file: a transformer with random weights learns to add, told only right or wrong.

Algorithm 1 of arXiv 2602.02710, on prompts of two digits: to 4 7 the right response is 1 1.

    python -m maxrl.minimal maxrl        or grpo, or rloo; half a minute on one core
"""

import argparse

import torch
from torch import Tensor, nn

P = 32  # prompts of a step
N = 16  # rollouts of each prompt, so that a step has B = P N rows
STEPS = 450
C = 64  # channels of the transformer
PROMPTS = torch.cartesian_prod(torch.arange(10), torch.arange(10))  # (100, 2)
ANSWERS = torch.stack([PROMPTS.sum(dim=1) // 10, PROMPTS.sum(dim=1) % 10], dim=1)  # (100, 2)


class Transformer(nn.Module):
    """A small GPT: from tokens (B, L) to the logits (B, L, 10) of the token after each of them."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(10, C)  # the tokens are the ten digits
        self.position = nn.Embedding(4, C)  # two tokens ask and two answer
        block = nn.TransformerEncoderLayer(C, 4, 4 * C, dropout=0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, num_layers=2)
        self.head = nn.Linear(C, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]  # (B, L, C)
        causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1])  # (L, L)
        return self.head(self.blocks(x, mask=causal))


@torch.no_grad()
def sample(model: nn.Module, tokens: Tensor) -> Tensor:
    """A response z drawn from m(z | x) for each prompt x: tokens (B, 2) to (B, 2)."""
    for _ in range(2):
        probabilities = model(tokens)[:, -1].softmax(dim=-1)  # (B, 10)
        tokens = torch.cat([tokens, torch.multinomial(probabilities, 1)], dim=1)
    return tokens[:, 2:]


def log_probs(model: nn.Module, prompts: Tensor, responses: Tensor) -> Tensor:
    """log m(z | x) (B,): the sum over the tokens of z, each predicted at the place before it."""
    logits = model(torch.cat([prompts, responses], dim=1))[:, 1:-1]  # (B, 2, 10)
    chosen = logits.log_softmax(dim=-1).gather(2, responses[:, :, None])  # (B, 2, 1)
    return chosen.sum(dim=(1, 2))


def advantages(rewards: Tensor, method: str) -> Tensor:
    """A (P, N) of rewards 0 or 1 (P, N). With many rollouts a prompt weighs w(p) (Table 2)."""
    mean = rewards.mean(dim=1, keepdim=True)  # (P, 1)  K / N
    std = rewards.std(dim=1, keepdim=True)  # (P, 1)
    return {
        "rloo": (rewards - mean) * N / (N - 1),  # w(p) = 1
        "grpo": (rewards - mean) / (std + 1e-6),  # w(p) = 1 / sqrt(p (1 - p))
        "maxrl": (rewards - mean) / mean.clamp(min=1 / N),  # 1 / p; clamped for K = 0, where A is 0
    }[method]


def main(words: list[str] | None = None):
    parser = argparse.ArgumentParser("python -m maxrl.minimal")
    parser.add_argument("method", nargs="?", default="maxrl", choices=["maxrl", "grpo", "rloo"])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    torch.manual_seed(args.seed)
    model = Transformer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, STEPS + 1):  # Algorithm 1
        rows = torch.randperm(len(PROMPTS))[:P].repeat_interleave(N)  # (B,)
        responses = sample(model, PROMPTS[rows])  # (B, 2)
        rewards = (responses == ANSWERS[rows]).all(dim=1).float().view(P, N)  # right or wrong
        A = advantages(rewards, args.method)  # (P, N)
        log_m = log_probs(model, PROMPTS[rows], responses).view(P, N)
        loss = -(A * log_m).mean()  # line 8; the minus because Adam descends
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 - step / STEPS)  # so that the end is calm
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == STEPS:
            p = log_probs(model, PROMPTS, ANSWERS).exp()  # (100,)  exact: one response is right
            print(f"step {step}: pass rate {p.mean():.3f}, {(p > 0.5).sum()} of 100 sums solved")


if __name__ == "__main__":
    main()
