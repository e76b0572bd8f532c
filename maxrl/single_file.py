"""MaxRL on a language model in one file: SmolLM2 learns word problems, told only right or wrong.

Algorithm 1 of arXiv 2602.02710, from a checkpoint's weights to the gradient:

    python -m maxrl.single_file maxrl        or grpo, or rloo

Then `python sample.py runs/single_file/base runs/single_file/trained --both --task gsm8k
--task.directory data/word_problems --max-response 40` shows what the model wrote before and after.
Small Llamas with TEMPLATE's chat format will do, on files of data.word_problems or data.gsm8k.

P  prompts of a step        B  rows of a tensor: P N    E, V   sizes of hidden state, vocabulary
N  rollouts of a prompt     L  tokens of a row          D      size of an attention head
K  successes among them     S  tokens before these      H, Hk  heads of queries, of keys and values
"""

import argparse
import json
import random
import re
import shutil
import sys
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn

P = 16
N = 8
LIMIT = 40  # tokens of a response; one that has not ended by then is wrong
WARMUP = 4  # steps on 2 P solutions each
STEPS = 15  # steps on rewards
WARMUP_RATE = 1e-4
RATE = 5e-5
ROWS = 32  # rows of a forward with gradients, which takes most of the memory
END = "<|im_end|>"
TEMPLATE = f"""<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face{END}
<|im_start|>user
%s Let's think step by step and output the final answer within \\boxed{{}}.{END}
<|im_start|>assistant
"""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Matrix products are in bfloat16 where the hardware has them; elsewhere they would be slower.
FAST = DEVICE == "cuda" or torch.cpu._is_avx512_bf16_supported()
autocast = torch.autocast(DEVICE, torch.bfloat16, enabled=FAST)
linear = partial(nn.Linear, bias=False)  # a Llama has no biases


def rotate(x, cos, sin):
    """Rotary positions: turn the pairs (x_d, x_{d + D/2}) of x (B, H, L, D) by (B, 1, L, D/2)."""
    a, b = x.chunk(2, dim=-1)
    first = a * cos - b * sin
    second = b * cos + a * sin
    turned = torch.cat([first, second], dim=-1)
    return turned.to(x.dtype)


class Layer(nn.Module):
    """Grouped-query attention, then SwiGLU, each added to its input."""

    def __init__(self, c):
        super().__init__()
        E = c.hidden_size
        inner = c.intermediate_size
        kv = c.num_key_value_heads * c.head_dim
        # These are the names in published checkpoints, so that weights load without a table.
        self.input_layernorm = nn.RMSNorm(E, c.rms_norm_eps)
        attn = nn.Module()
        attn.q_proj = linear(E, E)
        attn.k_proj = linear(E, kv)
        attn.v_proj = linear(E, kv)
        attn.o_proj = linear(E, E)
        self.self_attn = attn
        self.post_attention_layernorm = nn.RMSNorm(E, c.rms_norm_eps)
        mlp = nn.Module()
        mlp.gate_proj = linear(E, inner)
        mlp.up_proj = linear(E, inner)
        mlp.down_proj = linear(inner, E)
        self.mlp = mlp
        self.D = c.head_dim

    def forward(self, x, rotation, mask, past):
        """From x (B, L, E) to (B, L, E), and keys and values in one tensor (2, B, Hk, S + L, D)."""
        # Attention: every token looks up what it needs from those before it.
        attn = self.self_attn
        h = self.input_layernorm(x)
        shape = (*x.shape[:2], -1, self.D)  # (B, L, heads, D)
        q = attn.q_proj(h).view(shape).transpose(1, 2)  # (B, H, L, D)
        k = attn.k_proj(h).view(shape).transpose(1, 2)  # (B, Hk, L, D)
        v = attn.v_proj(h).view(shape).transpose(1, 2)  # (B, Hk, L, D)
        # Values carry no position: it only decides which keys a query finds.
        q = rotate(q, *rotation)
        k = rotate(k, *rotation)
        kv = torch.stack([k, v])  # (2, B, Hk, L, D)
        # Earlier tokens are not run again: later ones attend to their stored keys and values.
        if past is not None:
            kv = torch.cat([past, kv], dim=3)  # (2, B, Hk, S + L, D)
        h = F.scaled_dot_product_attention(q, *kv, attn_mask=mask, enable_gqa=True)
        h = h.transpose(1, 2).flatten(2)  # (B, L, H D)
        x = x + attn.o_proj(h)
        # SwiGLU: every token by itself; one product decides how much of the other passes.
        mlp = self.mlp
        h = self.post_attention_layernorm(x)
        gate = F.silu(mlp.gate_proj(h))
        x = x + mlp.down_proj(gate * mlp.up_proj(h))
        return x, kv


class Transformer(nn.Module):
    """The language model m, of the sizes in a config.json."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        c = SimpleNamespace(**config)
        c.head_dim = c.hidden_size // c.num_attention_heads
        body = nn.Module()
        body.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        layers = [Layer(c) for _ in range(c.num_hidden_layers)]
        body.layers = nn.ModuleList(layers)
        body.norm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.model = body
        # Each position turns a pair by this angle more: the first fast, the last hardly at all.
        exponents = torch.arange(0, c.head_dim, 2).double() / c.head_dim
        self.radians = c.rope_theta**-exponents  # (D / 2,)

    def forward(self, tokens, past, is_token):
        """Run tokens (B, L) after S others; return states (B, L, E), past and is_token for S + L.

        past      each layer's keys and values (2, B, Hk, S, D); None at first
        is_token  which of the S are tokens, not padding (B, S)
        """
        L = tokens.shape[1]
        S = is_token.shape[1]
        x = self.model.embed_tokens(tokens)  # (B, L, E)
        new = torch.ones_like(tokens, dtype=torch.bool)
        is_token = torch.cat([is_token, new], dim=1)  # (B, S + L)
        # The position of a token is the number of tokens before it, padding not counted.
        positions = is_token.cumsum(dim=1)[:, S:] - 1  # (B, L)
        radians = self.radians.to(x.dtype)
        angles = positions[:, None, :, None] * radians  # (B, 1, L, D / 2)
        rotation = (angles.cos(), angles.sin())
        # Each token sees itself and the tokens before it, but no padding.
        before = new.new_ones(L, S + L).tril(S)
        mask = is_token[:, None, None] & before  # (B, 1, L, S + L)
        present = []
        for layer, kv in zip(self.model.layers, past):
            x, kv = layer(x, rotation, mask, kv)
            present.append(kv)
        return x, present, is_token

    def logits(self, x):
        """From states (B, L, E) to the logits (B, L, V) of the token after each of them."""
        h = self.model.norm(x)
        logits = F.linear(h, self.model.embed_tokens.weight)  # the head is tied to the embeddings
        return logits.to(x.dtype)  # a log-softmax in bfloat16 can be off by .04 and more


def load(folder):
    """Read a Hugging Face directory. One sentence ends the program if that is not possible."""
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (folder / name).exists():
            sys.exit(f"{folder / name} is missing: data/README.md says how to make or download it")
    config = json.loads((folder / "config.json").read_text())
    # transformers 5 writes rope_theta and rope_type a level deeper than its older releases.
    config.update(config.get("rope_parameters") or {})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    # Another family or rotation may load without an error and would compute nonsense.
    rope = config.get("rope_type", "default")
    kind = config["model_type"], config.get("hidden_act", "silu"), rope
    plain = kind == ("llama", "silu", "default") and config.get("tie_word_embeddings")
    if not plain or config.get("rope_scaling") or tokenizer.token_to_id(END) is None:
        sys.exit(f"{folder} is no plain Llama with a tied head and {END}: train.py reads others")
    config.update(dtype="float32", torch_dtype="float32")  # bfloat16 loses Adam's small steps
    model = Transformer(config)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model, tokenizer


def save(model, source, folder):
    """Write a Hugging Face directory, with the tokenizer of `source`."""
    folder.mkdir(parents=True)
    for pattern in ("*token*.json", "*.jinja", "generation_config.json"):
        for file in source.glob(pattern):
            shutil.copy(file, folder)
    (folder / "config.json").write_text(json.dumps(model.config))
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


def padded(rows):
    """Rows of any lengths, padded on the right, and a mask that is True for tokens, both (B, L)."""
    tensors = [torch.tensor(row) for row in rows]
    # No token has the id -1, so padding cannot be mistaken for a token.
    tokens = nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=-1)
    return tokens.clamp(min=0), tokens >= 0


def encode(model, prompts, n):
    """Run P prompts once for n rows each; return `past`, `is_token` and the last tokens (B, 1)."""
    # The last token of a prompt is left for the next call, which gives the first logits needed.
    most = [prompt[:-1] for prompt in prompts]
    last = [prompt[-1:] for prompt in prompts]
    # No token sees a later one, so padding on the right changes nothing; is_token hides it later.
    tokens, is_token = padded(most)  # (P, S)
    nothing = [None] * len(model.model.layers)
    _, past, _ = model(tokens, nothing, is_token[:, :0])
    # All n rows share what was computed for the prompt, and their gradients add up in it.
    past = [kv.repeat_interleave(n, dim=1) for kv in past]
    is_token = is_token.repeat_interleave(n, dim=0)  # (B, S)
    last = torch.tensor(last).repeat_interleave(n, dim=0)  # (B, 1)
    return past, is_token, last


@torch.no_grad()
@autocast
def sample(model, prompts, n, end):
    """n responses z ~ m(z | x) to each x: tokens and mask (B, L), and which have ended (B,)."""
    past, is_token, token = encode(model, prompts, n)
    running = torch.ones_like(token, dtype=torch.bool)  # (B, 1)
    tokens = []
    mask = []
    while len(tokens) < LIMIT and running.any():
        x, past, is_token = model(token, past, is_token)
        # Temperature 1 and all tokens: the gradient is right only for draws from m itself.
        logits = model.logits(x)[:, 0]  # (B, V)
        probabilities = logits.softmax(dim=-1)  # (B, V)
        token = torch.multinomial(probabilities, 1)  # (B, 1)
        tokens.append(token)
        # The end token is part of a response, what a row draws after it is not.
        mask.append(running)
        running = running & (token != end)
    ended = ~running[:, 0]
    return torch.cat(tokens, dim=1), torch.cat(mask, dim=1), ended


@autocast
def log_probs(model, prompts, responses):
    """log m of every token of the responses (P, N, L), given the prompt and the tokens before."""
    z = responses.flatten(0, 1)  # (B, L)
    past, is_token, last = encode(model, prompts, responses.shape[1])
    # Each token is predicted at the position before it.
    before = torch.cat([last, z[:, :-1]], dim=1)  # (B, L)
    x, _, _ = model(before, past, is_token)
    logits = model.logits(x).transpose(1, 2)  # (B, V, L)
    log_m = -F.cross_entropy(logits, z, reduction="none")  # (B, L)
    return log_m.view_as(responses)


def advantages(rewards, method):
    """The advantages A (P, N) of rewards (P, N) that are 0 or 1."""
    n = rewards.shape[1]
    mean = rewards.mean(dim=1, keepdim=True)  # (P, 1)  K / N
    std = rewards.std(dim=1, keepdim=True)  # (P, 1)
    centered = rewards - mean  # (P, N)
    # Up to a factor that all share, a prompt with pass rate p adds w(p) grad p on average. The w(p)
    # below are for many rollouts (Table 2); for N rollouts, MaxRL's is Eq. 6 with T = N - 1.
    return {
        # w(p) = 1. The factor turns this into the reward minus the mean of the N - 1 others.
        "rloo": centered * n / (n - 1),
        # w(p) = 1 / sqrt(p (1 - p)). The 1e-6 prevents 0 / 0 if K is 0 or N.
        "grpo": centered / (std + 1e-6),
        # w(p) = 1 / p. The clamp prevents 0 / 0 if K is 0.
        "maxrl": centered / mean.clamp(min=1 / n),
    }[method]


def update(model, optimizer, prompts, responses, mask, A):
    """One step of Adam for responses and mask (P, N, L), A (P, N); returns the gradient's norm."""
    optimizer.zero_grad()
    trained = [i for i, group in enumerate(A) if group.any()]  # the others have no gradient
    size = ROWS // A.shape[1]
    for first in range(0, len(trained), size):
        groups = trained[first : first + size]
        asked = [prompts[group] for group in groups]
        log_m = log_probs(model, asked, responses[groups])  # (groups, N, L)
        weighted = A[groups].unsqueeze(2) * log_m * mask[groups]
        # One divisor for the whole batch (App. F): a mean of each forward would be another loss.
        loss = -weighted.sum() / mask.sum()  # the minus because Adam descends
        loss.backward()  # Algorithm 1, line 8: adds to the gradient of the groups before
    # Clipping scales the whole gradient, so prompts keep their relative weights.
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()  # line 9
    return norm


def number(text):
    """The number that a text is, as 18, $1,200 or 3.50; None for all else."""
    form = r"\\?\$?(-?[0-9]{1,3}(?:,?[0-9]{3})*(?:\.[0-9]+)?)\.?"
    match = re.fullmatch(form, text.strip())
    return Decimal(match[1].replace(",", "")) if match else None


def verify(response, answer):
    r"""1.0 if the number in the last \boxed{} of a response is the answer, otherwise 0.0."""
    _, box, rest = response.rpartition(r"\boxed{")
    inside, closed, _ = rest.partition("}")
    given = number(inside) if box and closed else None
    right = given is not None and given == number(answer)  # texts that are no numbers differ
    return float(right)


def read(file, tokenizer):
    """The problems in a file: the ids of prompt and solution, and the text of the answer."""
    if not file.exists():
        sys.exit(f"{file} is missing: python -m data.word_problems.prepare writes such files")
    problems = []
    for line in file.read_text().splitlines():
        row = json.loads(line)
        answer = row["answer"]
        prompt = TEMPLATE % row["problem"]
        solution = f"{row['solution']}\n\\boxed{{{answer}}}{END}"
        # Apart, since a token across the border would be neither prompt nor response.
        x = tokenizer.encode(prompt, add_special_tokens=False)
        z = tokenizer.encode(solution, add_special_tokens=False)
        problems.append((x.ids, z.ids, answer))
    return problems


def rollouts(model, tokenizer, problems):
    """Sample and judge: prompts, responses and mask (P, N, L), and rewards (P, N)."""
    prompts, _, answers = zip(*problems)
    end = tokenizer.token_to_id(END)
    tokens, mask, ended = sample(model, prompts, N, end)  # (B, L), (B, L), (B,)
    right = []
    for i, row in enumerate(tokens):
        ids = row[mask[i]].tolist()
        text = tokenizer.decode(ids)
        right.append(verify(text, answers[i // N]))
    # A response that was cut off may hold a box, but the model had not finished.
    rewards = torch.tensor(right) * ended  # (B,)
    groups = (len(problems), N)
    responses = tokens.unflatten(0, groups)  # (P, N, L)
    mask = mask.unflatten(0, groups)  # (P, N, L)
    return prompts, responses, mask, rewards.view(groups)


def evaluate(model, tokenizer, problems):
    """pass@1 on the problems, as a text."""
    *_, rewards = rollouts(model, tokenizer, problems)
    # Rollouts of one problem are not independent; problems are.
    p = rewards.mean(dim=1)  # (problems,)
    error = p.std() / len(p) ** 0.5
    return f"pass@1 {p.mean():.3f} ± {error:.3f} (standard error)"


def main(words=None):
    """Warm up on solutions, then learn from rewards; both models are written."""
    parser = argparse.ArgumentParser("python -m maxrl.single_file")
    methods = ["maxrl", "grpo", "rloo"]
    add = parser.add_argument
    add("method", nargs="?", default="maxrl", choices=methods)
    add("--model", type=Path, default="data/smollm2/135m-instruct")
    add("--data", type=Path, default="data/word_problems")
    add("--out", type=Path, default="runs/single_file", help="a new directory")
    add("--seed", type=int, default=0)
    args = parser.parse_args(words)
    if args.out.exists():
        sys.exit(f"{args.out} exists: choose another --out")
    sys.stdout.reconfigure(line_buffering=True)  # a log file shows each step when it is done
    torch.set_default_device(DEVICE)
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    model, tokenizer = load(args.model)
    train = read(args.data / "train.jsonl", tokenizer)
    test = read(args.data / "test.jsonl", tokenizer)
    test = test[: 2 * P]

    # A model that never writes a box has no success to learn from.
    optimizer = torch.optim.AdamW(model.parameters(), lr=WARMUP_RATE)
    for step in range(1, WARMUP + 1):
        problems = random.sample(train, 2 * P)
        prompts, solutions, _ = zip(*problems)
        tokens, mask = padded(solutions)  # (2 P, L)
        responses = tokens[:, None]  # (2 P, 1, L)
        A = torch.ones(2 * P, 1)  # one rollout of advantage 1: the loss of maximum likelihood
        norm = update(model, optimizer, prompts, responses, mask[:, None], A)
        print(f"warm-up {step}: gradient norm {norm:.2f}")
    print("base:", evaluate(model, tokenizer, test))
    save(model, args.model, args.out / "base")

    # A new optimizer, since the old one's moments are those of another loss.
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(1, STEPS + 1):  # Algorithm 1
        problems = random.sample(train, P)
        prompts, responses, mask, rewards = rollouts(model, tokenizer, problems)
        A = advantages(rewards, args.method)  # (P, N)
        norm = update(model, optimizer, prompts, responses, mask, A)
        print(f"step {step}: pass rate {rewards.mean():.3f}, gradient norm {norm:.2f}")
    print("trained:", evaluate(model, tokenizer, test))
    save(model, args.model, args.out / "trained")


if __name__ == "__main__":
    main()
