"""Embeds a small knowledge base in numpy alone, with its rows on parameter servers: TransE.

The facts are towns on a grid: "the town north of A is B". An entity's row plus a relation's row
should be the row of the entity that the fact names, and not that of another one.

    python examples/knowledge_base.py
    mpirun -n 4 python -m hpcdist --pservers 2 examples/knowledge_base.py
"""

import argparse

import numpy as np

import hpcdist.ps

SIDE, WIDTH = 12, 16
MOVES = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}


def all_facts():
    """Return every (town, relation, town), int64 [n, 3]."""
    towns = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    found = []
    for relation, (down, right) in enumerate(MOVES.values()):
        for y, x in np.ndindex(SIDE, SIDE):
            if 0 <= y + down < SIDE and 0 <= x + right < SIDE:
                found.append((towns[y, x], relation, towns[y + down, x + right]))
    return np.array(found)


def train(towns, relations, facts, steps, batch):
    """Train with logistic losses of right against wrong towns; return the mean of the last ones."""
    draw, losses = np.random.RandomState(1), []
    mine = slice(hpcdist.ps.rank(), None, hpcdist.ps.size())
    for _ in range(steps):
        head, relation, right = facts[draw.randint(len(facts), size=batch)][mine].T
        wrong = draw.randint(SIDE * SIDE, size=batch)[mine]
        ids = np.stack([head, right, wrong])
        rows, move = towns.pull(ids), relations.pull(relation)
        to_right, to_wrong = rows[0] + move - rows[1], rows[0] + move - rows[2]
        score = 1 + (to_right**2 - to_wrong**2).sum(1)
        slope = (2 / (1 + np.exp(-score)) / len(score))[:, None].astype("float32")
        both = slope * (to_right - to_wrong)
        towns.push(ids, np.stack([both, -slope * to_right, slope * to_wrong]))
        relations.push(relation, both)
        losses.append(hpcdist.ps.mean(np.logaddexp(0, score).mean()))
    return np.mean(losses[-20:])


def hits(towns, relations, facts):
    """Return the part of facts whose town is among the three nearest."""
    everything = towns.pull(np.arange(SIDE * SIDE), create=False)
    moves = relations.pull(facts[:, 1], create=False)
    aims = everything[facts[:, 0]] + moves
    distance = ((aims[:, None] - everything) ** 2).sum(2)
    nearest = np.argsort(distance, axis=1)[:, :3]
    return (nearest == facts[:, 2:]).any(1).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--save", help="directory of checkpoints, to go on from, too")
    chosen = parser.parse_args()
    towns = hpcdist.ps.connect("towns", WIDTH, optimizer="adagrad", lr=0.2)
    relations = hpcdist.ps.connect("relations", WIDTH, optimizer="adagrad", lr=0.2)
    if chosen.save:
        towns.restore(chosen.save)
    facts = all_facts()
    loss = train(towns, relations, facts, chosen.steps, chosen.batch)
    found = hits(towns, relations, facts)
    if chosen.save:
        towns.save(chosen.save)
    if hpcdist.ps.rank() == 0:
        print(f"loss {loss:.5f}, right town among the nearest three: {found:.3f}")


if __name__ == "__main__":
    main()
