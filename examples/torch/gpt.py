"""A small GPT of letters, its parameters sharded by FSDP2: a script that does not import hpcdist.

torchrun --nproc-per-node 4 examples/torch/gpt.py
mpirun -n 4 python -m hpcdist --as-torchrun examples/torch/gpt.py
python -m hpcdist --as-torchrun examples/torch/gpt.py --text shakespeare.txt
"""

from __future__ import annotations

import argparse
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WORDS = (
    "the a one this king queen fool ghost loves fears sees kills old young mad gentle and but so"
)


class Block(nn.Module):
    """Causal attention and two layers, each beside what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.looks, self.joins = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.thinks = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [n, length, width] of the same."""
        three = self.looks(self.before(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*three, is_causal=True)
        x = x + self.joins(seen.transpose(1, 2).flatten(2))
        return x + self.thinks(self.between(x))


class Gpt(nn.Module):
    """Logits of the next letter."""

    def __init__(self, letters: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.last, self.out = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return [n, length, letters] of letters [n, length]."""
        x = self.letter(text) + self.place(torch.arange(text.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.out(self.last(x))


def text_of(path: str | None) -> str:
    """Return a file, or generated sentences."""
    if path is not None:
        with open(path) as file:
            return file.read()
    words, rng = WORDS.split(), random.Random(0)
    nouns, verbs, kinds = words[4:8], words[8:12], words[12:16]

    def someone() -> str:
        return f"{rng.choice(words[:4])} {rng.choice(kinds)} {rng.choice(nouns)}"

    sentences = (f"{someone()} {rng.choice(verbs)} {someone()}" for _ in range(5000))
    return "".join(f"{sentence} {rng.choice(words[16:])}\n" for sentence in sentences)


def main() -> None:
    """Train, and print the loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", help="a file to learn; default: generated sentences")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16, help="texts of all ranks together")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    text = text_of(args.text)
    letters = sorted(set(text))
    data = torch.tensor([letters.index(letter) for letter in text])
    torch.manual_seed(0)
    model = Gpt(len(letters), args.length, args.width, args.layers)
    mesh = init_device_mesh("cpu", (size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    for step in range(args.steps):
        begins = torch.randint(len(data) - args.length, (args.batch,), generator=generator)
        own = torch.stack([data[b : b + args.length + 1] for b in begins[rank::size]])
        logits = model(own[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), own[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19 or step == args.steps - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step}: loss {mean.item() / size:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
