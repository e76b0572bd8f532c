"""MaxRL on a language model in one file: SmolLM2 learns word problems, told only right or wrong.

Algorithm 1 of arXiv 2602.02710, from a checkpoint's weights to the gradient:

    python -m maxrl.single_file maxrl        or grpo, or rloo

It takes small Llamas with TEMPLATE's chat format; problems of data.word_problems, or GSM8K's own.

P  prompts of a step        B  rows of a tensor: P N    E, V   sizes of hidden state, vocabulary
N  rollouts of a prompt     L  tokens of a row          D      size of an attention head
K  successes among them     S  tokens before these      H, Hk  heads of queries, of keys and values
"""

import argparse
import json
import random
import re
import sys
import time
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

P = 16
N = 8
LIMIT = 40  # tokens of a response; one that has not ended by then is wrong
WARMUP = 4  # steps on 2 P solutions each
STEPS = 15  # steps on rewards
ROWS = 32  # rows of a forward with gradients, which takes most of the memory
END = "<|im_end|>"
TEMPLATE = f"""<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face{END}
<|im_start|>user
%s Let's think step by step and output the final answer within \\boxed{{}}.{END}
<|im_start|>assistant
"""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FAST = DEVICE == "cuda" or torch.cpu._is_avx512_bf16_supported()
autocast = torch.autocast(DEVICE, torch.bfloat16, enabled=FAST)  # of matrix products


def linears(**sizes: tuple[int, int]) -> Any:
    return nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: turn the pairs (x_d, x_{d + D/2}) of x (B, H, L, D) by (B, 1, L, D/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class Layer(nn.Module):
    """Grouped-query attention, then SwiGLU. Modules have the names of published checkpoints."""

    def __init__(self, c: SimpleNamespace):
        super().__init__()
        E, inner = c.hidden_size, c.intermediate_size
        q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.D = c.head_dim
        self.input_layernorm = nn.RMSNorm(E, c.rms_norm_eps)
        self.self_attn = linears(q_proj=(E, q), k_proj=(E, kv), v_proj=(E, kv), o_proj=(q, E))
        self.post_attention_layernorm = nn.RMSNorm(E, c.rms_norm_eps)
        self.mlp = linears(gate_proj=(E, inner), up_proj=(E, inner), down_proj=(inner, E))

    def forward(self, x: Tensor, rotation: tuple, mask: Tensor, past: tuple | None):
        """From x (B, L, E) to (B, L, E), and keys and values (B, Hk, S + L, D)."""
        attn, mlp = self.self_attn, self.mlp
        h = self.input_layernorm(x)
        projected = attn.q_proj(h), attn.k_proj(h), attn.v_proj(h)  # (B, L, H D), (B, L, Hk D)
        q, k, v = (y.unflatten(-1, (-1, self.D)).transpose(1, 2) for y in projected)
        q = rotate(q, *rotation)  # (B, H, L, D)
        k = rotate(k, *rotation)  # (B, Hk, L, D)
        if past:
            k, v = (torch.cat(pair, dim=2) for pair in zip(past, (k, v)))
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        x = x + attn.o_proj(h.transpose(1, 2).flatten(2))
        h = self.post_attention_layernorm(x)
        return x + mlp.down_proj(F.silu(mlp.gate_proj(h)) * mlp.up_proj(h)), (k, v)


class Transformer(nn.Module):
    """The language model m, of the sizes in a config.json."""

    def __init__(self, config: dict):
        super().__init__()
        self.config = config
        c = SimpleNamespace(**config)
        c.head_dim = config.get("head_dim") or c.hidden_size // c.num_attention_heads
        self.model: Any = nn.Module()
        self.model.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.model.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.model.norm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        # transformers 5 keeps rope_theta among the rope_parameters.
        theta = (config.get("rope_parameters") or config)["rope_theta"]
        self.radians = theta ** -(torch.arange(0, c.head_dim, 2).double() / c.head_dim)  # (D / 2,)

    def forward(self, tokens: Tensor, past: list | None, real: Tensor, head: bool = True):
        """Run tokens (B, L) after the S of `past`, of which real (B, S) are no padding."""
        B, L = tokens.shape
        x = self.model.embed_tokens(tokens)  # (B, L, E)
        # The position of a token is the number of real tokens before it.
        positions = real.sum(dim=1, keepdim=True) + torch.arange(L)  # (B, L)
        angles = positions[:, None, :, None] * self.radians.to(x.dtype)  # (B, 1, L, D / 2)
        seen = torch.cat([real, torch.ones_like(tokens, dtype=torch.bool)], dim=1)
        mask = seen[:, None, None].expand(B, 1, L, -1).tril(real.shape[1])  # (B, 1, L, S + L)
        present = []
        for i, layer in enumerate(self.model.layers):
            x, kv = layer(x, (angles.cos(), angles.sin()), mask, past and past[i])
            present.append(kv)
        logits = F.linear(self.model.norm(x), self.model.embed_tokens.weight) if head else x
        return present, logits.to(x.dtype)  # a softmax in bfloat16 would be wrong by .02 and more


def load(folder: Path) -> tuple[Transformer, Tokenizer]:
    """Read a Hugging Face directory; the weights become float32."""
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).exists():
            sys.exit(f"{folder / name} is missing: data/README.md says how to make or download it")
    config = json.loads((folder / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    found = config["model_type"], config.get("tie_word_embeddings"), kind
    if found != ("llama", True, "default") or tokenizer.token_to_id(END) is None:
        sys.exit(f"{folder} is no plain Llama with a tied head and {END}: train.py reads others")
    model = Transformer(config | dict.fromkeys(["dtype", "torch_dtype"], "float32"))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return model, tokenizer


def save(model: Transformer, source: Path, folder: Path):
    """Write a Hugging Face directory, with the tokenizer of `source`."""
    folder.mkdir(parents=True)
    for file in [*source.glob("*token*.json"), *source.glob("generation_config.json")]:
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "config.json").write_text(json.dumps(model.config))
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Rows of any lengths, padded on the right, and their mask: (B, L) both."""
    tokens = pad_sequence([torch.tensor(row) for row in rows], True, -1)
    return tokens.clamp(min=0), tokens >= 0


def encode(model: Transformer, prompts: list[list[int]], n: int) -> tuple[list, Tensor, Tensor]:
    """Run P prompts once: `past` and `real` for n rows of each, and their last tokens (B, 1)."""
    tokens, real = padded([prompt[:-1] for prompt in prompts])  # (P, S)
    # No token attends to a later one, so padding on the right changes nothing.
    past, _ = model(tokens, None, real[:, :0], head=False)
    past = [(k.repeat_interleave(n, dim=0), v.repeat_interleave(n, dim=0)) for k, v in past]
    last = torch.tensor([prompt[-1:] for prompt in prompts])  # (P, 1)
    return past, real.repeat_interleave(n, dim=0), last.repeat_interleave(n, dim=0)


@torch.no_grad()
@autocast
def sample(model: Transformer, prompts: list[list[int]], n: int, end: int):
    """n responses z ~ m(z | x) to each x: tokens and mask (B, L), and which have ended (B,)."""
    past, real, token = encode(model, prompts, n)
    drawn: list[tuple] = []
    running = torch.ones_like(token, dtype=torch.bool)  # (B, 1)
    while len(drawn) < LIMIT and running.any():
        past, logits = model(token, past, real)  # (B, 1, V)
        real = torch.cat([real, torch.ones_like(running)], dim=1)
        token = torch.multinomial(logits[:, 0].softmax(dim=-1), 1)  # (B, 1)
        drawn.append((token, running))
        running = running & (token != end)
    tokens, mask = (torch.cat(columns, dim=1) for columns in zip(*drawn))
    return tokens, mask, ~running[:, 0]


def advantages(rewards: Tensor, method: str) -> Tensor:
    """A (P, N) of rewards 0 or 1 (P, N). With many rollouts a prompt weighs w(p) (Table 2)."""
    n = rewards.shape[1]
    mean = rewards.mean(dim=1, keepdim=True)  # (P, 1)  K / N
    std = rewards.std(dim=1, keepdim=True)  # (P, 1)
    return {
        "rloo": (rewards - mean) * n / (n - 1),  # w(p) = 1
        "grpo": (rewards - mean) / (std + 1e-6),  # w(p) = 1 / sqrt(p (1 - p))
        "maxrl": (rewards - mean) / mean.clamp(min=1 / n),  # 1 / p; clamped for K = 0, where A is 0
    }[method]


def update(model, optimizer, prompts: list, responses: Tensor, mask: Tensor, A: Tensor) -> float:
    """One step of Adam for responses and mask (B, L), A (P, N); returns the gradient's norm."""
    optimizer.zero_grad()
    n = A.shape[1]
    # A group has no gradient if all of it is wrong, or right.
    mixed = A.any(dim=1).nonzero().flatten()
    for groups in mixed.split(max(1, ROWS // n)) if len(mixed) else ():
        rows = (groups[:, None] * n + torch.arange(n)).flatten()
        z = responses[rows]  # (rows, L)
        with autocast:
            past, real, last = encode(model, [prompts[g] for g in groups], n)
            # Each token is predicted at the place before it.
            _, logits = model(torch.cat([last, z[:, :-1]], dim=1), past, real)  # (rows, L, V)
        log_m = -F.cross_entropy(logits.transpose(1, 2), z, reduction="none")  # (rows, L)
        # One divisor for the whole batch (App. F): a mean of each forward would be another loss.
        loss = -(A[groups].reshape(-1, 1) * log_m * mask[rows]).sum() / mask.sum()
        loss.backward()  # line 8; the minus because Adam descends
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    optimizer.step()
    return norm


def number(text: str) -> Decimal | None:
    """The number that a text is, as 18, $1,200 or 3.50; None for all else."""
    found = re.fullmatch(r"\\?\$?(-?[0-9]{1,3}(?:,?[0-9]{3})*(?:\.[0-9]+)?)\.?", text.strip())
    return found and Decimal(found[1].replace(",", ""))


def verify(response: str, answer: str) -> float:
    r"""1.0 if the number in the last \boxed{} of a response is the answer, otherwise 0.0."""
    _, box, rest = response.rpartition(r"\boxed{")
    inside, closed, _ = rest.partition("}")
    return float(bool(box and closed) and number(inside) == number(answer) is not None)


def read(file: Path, tokenizer: Tokenizer) -> list[tuple[list[int], list[int], str]]:
    """The problems in a file: the ids of prompt and solution, and the answer."""
    if not file.exists():
        sys.exit(f"{file} is missing: python -m data.word_problems.prepare writes such files")
    problems = []
    for row in map(json.loads, file.read_text().splitlines()):
        # GSM8K has solution and answer in one text.
        solution, _, answer = row["answer"].rpartition("####")
        solution = row.get("solution") or re.sub("<<.*?>>", "", solution).strip()
        prompt = TEMPLATE % (row.get("problem") or row["question"])
        texts = [prompt, f"{solution}\n\\boxed{{{answer.strip()}}}{END}"]
        x, z = tokenizer.encode_batch(texts, add_special_tokens=False)
        problems.append((x.ids, z.ids, answer))
    return problems


def rollouts(model: Transformer, tokenizer: Tokenizer, problems: list[tuple]):
    """Sample and judge: prompts, responses (B, L), their mask (B, L) and the rewards (P, N)."""
    prompts, _, answers = map(list, zip(*problems))
    responses, mask, ended = sample(model, prompts, N, tokenizer.token_to_id(END))
    texts = tokenizer.decode_batch([z[m].tolist() for z, m in zip(responses, mask)])
    right = [verify(text, answers[i // N]) for i, text in enumerate(texts)]
    return prompts, responses, mask, (torch.tensor(right) * ended).view(-1, N)


def main(words: list[str] | None = None):
    parser = argparse.ArgumentParser("python -m maxrl.single_file")
    parser.add_argument("method", nargs="?", default="maxrl", choices=["maxrl", "grpo", "rloo"])
    parser.add_argument("--model", type=Path, default="data/smollm2/135m-instruct")
    parser.add_argument("--data", type=Path, default="data/word_problems")
    parser.add_argument("--out", type=Path, default="runs/single_file", help="a new directory")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    if args.out.exists():
        sys.exit(f"{args.out} exists: choose another --out")
    torch.set_default_device(DEVICE)
    torch.manual_seed(args.seed)
    draw = random.Random(args.seed).sample
    model, tokenizer = load(args.model)
    train, test = (read(args.data / f"{name}.jsonl", tokenizer) for name in ("train", "test"))
    start = time.time()

    def say(text: str):
        print(f"{time.time() - start:5.0f} s  {text}", flush=True)

    def evaluate(name: str):
        p = rollouts(model, tokenizer, test[: 2 * P])[-1].mean(dim=1)  # (problems,)
        say(f"{name}: pass@1 {p.mean():.3f} ± {p.std() / len(p) ** 0.5:.3f} (standard error)")
        save(model, args.model, args.out / name)

    # A model that never writes a box has no success to learn from.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    for step in range(1, WARMUP + 1):
        prompts, solutions, _ = map(list, zip(*draw(train, 2 * P)))
        responses, mask = padded(solutions)  # (2 P, L)
        # With N = 1 and A = 1 the loss is that of maximum likelihood.
        norm = update(model, optimizer, prompts, responses, mask, A=mask[:, :1])
        say(f"warm-up {step}: gradient norm {norm:.2f}")
    evaluate("base")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01)
    for step in range(1, STEPS + 1):  # Algorithm 1
        prompts, responses, mask, rewards = rollouts(model, tokenizer, draw(train, P))
        A = advantages(rewards, args.method)  # (P, N)
        norm = update(model, optimizer, prompts, responses, mask, A)
        say(f"step {step}: pass rate {rewards.mean():.3f}, gradient norm {norm:.2f}")
    evaluate("trained")
    options = f"--both --task gsm8k --task.directory {args.data} --max-response {LIMIT}"
    print(f"next: python sample.py {args.out}/base {args.out}/trained {options}")


if __name__ == "__main__":
    main()
