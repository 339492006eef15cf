"""Collectives of tensors that were made in inference mode, which only that mode may write."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch.distributed as dist  # noqa: E402

from tests.torch.torch_ranks import WITH_AND_WITHOUT_MEMORY, of_all  # noqa: E402

pytestmark = pytest.mark.mpi
TRANSPOSED = [lambda tensor: tensor, lambda tensor: tensor.t().contiguous().t()]


@WITH_AND_WITHOUT_MEMORY
@pytest.mark.parametrize("laid_out", TRANSPOSED, ids=["contiguous", "transposed"])
@pytest.mark.parametrize("by", ["wait", "background"])
def test_collectives_in_inference_mode_give_what_they_give_outside(k, laid_out, by):
    pair = of_all(k)
    outside = _results(pair.ours, laid_out, by)
    with torch.inference_mode():
        inside = _results(pair.ours, laid_out, by)
    assert len(outside) == len(inside) and all(map(torch.equal, outside, inside))
    assert all(tensor.is_inference() for tensor in inside)


def _results(group, laid_out, by):
    me, size = dist.get_rank(group), dist.get_world_size(group)

    def new(rows=3, value=0):
        return laid_out(torch.arange(4.0 * rows).reshape(rows, 4) * (me + 1) + value)

    def end(work):
        work.get_future().wait() if by == "background" else work.wait()

    asked = {"group": group, "async_op": True}
    found = [new(value=me) for _ in range(3)]
    end(dist.all_reduce(found[0], **asked))
    end(dist.broadcast(found[1], group=group, group_src=size - 1, async_op=True))
    end(dist.reduce(found[2], group=group, group_dst=0, async_op=True))
    whole, part, turned = torch.zeros(3 * size, 4), torch.zeros(3, 4), torch.zeros(3 * size, 4)
    end(dist.all_gather_into_tensor(whole, new(), **asked))
    end(dist.reduce_scatter_tensor(part, new(3 * size), **asked))
    end(dist.all_to_all_single(turned, new(3 * size), **asked))
    rows = [new() for _ in range(size)]
    end(dist.all_gather(rows, new(), **asked))
    scattered = new()
    end(dist.scatter(scattered, rows if me == 0 else None, group=group, group_src=0, async_op=True))
    several = [new(), new(2)]
    end(group.allreduce_coalesced(several))
    found += [whole, part, turned, *rows, scattered, *several]
    if size > 1:
        came = new(value=me)
        sent = dist.isend(new(value=me), group=group, group_dst=(me + 1) % size)
        end(dist.irecv(came, group=group, group_src=(me - 1) % size))
        sent.wait()
        found.append(came)
    sparse = torch.eye(3).to_sparse() * (me + 1)
    end(dist.all_reduce(sparse, **asked))
    return [*found, sparse.to_dense()]
