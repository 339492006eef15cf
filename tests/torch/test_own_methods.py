"""Methods of groups, which libraries call beside torch.distributed's functions: as gloo's."""

from __future__ import annotations

from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install .[torch]")

import torch.distributed as dist  # noqa: E402

from hpcdist.errors import CommError  # noqa: E402
from tests.torch.torch_ranks import WITH_AND_WITHOUT_MEMORY, of_all, pairs  # noqa: E402

pytestmark = pytest.mark.mpi


def tensors(number):
    return [torch.full((2,), 10.0 * dist.get_rank() + k) for k in range(number)]


def rooted(options, root):
    options.rootRank = root
    return options


def second_tensor_of(root):
    options = rooted(dist.BroadcastOptions(), root)
    options.rootTensor = 1
    return options


@WITH_AND_WITHOUT_MEMORY
@pytest.mark.parametrize("root", [0, -1])
def test_futures_have_the_value_of_gloos(root, k):
    pair = of_all(k)
    root %= pair.size
    of_root = [tensors(pair.size)] if dist.get_rank() == root else []
    for begin in (
        lambda group: group.allgather([tensors(pair.size)], tensors(1)),
        lambda group: group.gather(of_root, tensors(1), rooted(dist.GatherOptions(), root)),
        lambda group: group.scatter(tensors(1), of_root, rooted(dist.ScatterOptions(), root)),
        lambda group: group.alltoall(tensors(pair.size), tensors(pair.size)),
        lambda group: group.allreduce(tensors(1)),
        lambda group: group.allreduce_coalesced(tensors(3)),
        lambda group: group.broadcast(tensors(1)),
    ):
        ours, theirs = begin(pair.ours), begin(pair.gloo)
        torch.testing.assert_close(ours.get_future().wait(), theirs.get_future().wait())
        theirs.wait()
        torch.testing.assert_close(ours.result(), theirs.result())


def test_tensors_that_a_method_cannot_take_are_refused():
    group, size, me = of_all(0).ours, of_all(0).size, dist.get_rank()
    gather, scatter = rooted(dist.GatherOptions(), me), rooted(dist.ScatterOptions(), me)
    whole = [tensors(size)]
    for message, call in (
        ("one list of tensors .* got 0 lists", lambda: group.gather([], tensors(1), gather)),
        ("one list of tensors .* got 2 lists", lambda: group.gather(whole * 2, tensors(1), gather)),
        ("one list of tensors .* got 0 lists", lambda: group.scatter(tensors(1), [], scatter)),
        ("expected one tensor, got 2", lambda: group.gather(whole, tensors(2), gather)),
        ("expected one tensor, got 0", lambda: group.scatter([], whole, scatter)),
        ("got 1 outputs and 2 inputs", lambda: group.allgather(whole, tensors(2))),
        ("at least one, got 0 outputs", lambda: group.allgather([], [])),
        ("at least one tensor", lambda: group.allreduce_coalesced([])),
        ("root tensor 1", lambda: group.broadcast(tensors(1), second_tensor_of(me))),
    ):
        with pytest.raises(CommError, match=message):
            call()
    gather.rootRank = scatter.rootRank = (me + 1) % size
    if size > 1:
        with pytest.raises(CommError, match=f"expected no tensors for all ranks on rank {me}"):
            group.gather(whole, tensors(1), gather)
        with pytest.raises(CommError, match=f"expected no tensors for all ranks on rank {me}"):
            group.scatter(tensors(1), whole, scatter)


def test_groups_tell_of_their_timeout_and_their_store():
    of_all(0)
    group = dist.new_group(backend="hpcdist", timeout=timedelta(seconds=50))
    backend = group._get_backend(torch.device("cpu"))
    assert backend.options._timeout == timedelta(seconds=50)
    backend._set_default_timeout(timedelta(seconds=23))
    assert backend.options._timeout == timedelta(seconds=23)
    backend.options._timeout = timedelta(seconds=9)
    assert group.options._timeout == timedelta(seconds=9)
    assert not backend.supports_splitting and not backend.supports_tensor_alloc(torch.device("cpu"))
    group._set_sequence_number_for_group()
    group.get_group_store().set("of", "the group")
    assert group.get_group_store().get("of") == b"the group"


def test_torchs_methods_that_split_and_merge_backends_in_cpp_are_refused():
    group = of_all(0).ours
    for call in (lambda: group.split_group([0]), lambda: group.merge_remote_group(None, 2)):
        with pytest.raises(CommError, match=r"dist\.new_group\(\) make groups of some ranks"):
            call()


@pytest.mark.parametrize("apart", [False, True])
def test_gather_single_puts_the_parts_one_after_another(apart):
    """What torch calls from 2.14 on; gloo has none."""
    for pair in pairs():
        if not pair.here:
            continue
        whole = torch.empty(3, 2 * pair.size).t() if apart else torch.empty(2 * pair.size, 3)
        output = whole if pair.me == 0 else torch.empty(0)
        pair.ours.gather_single(output, torch.full((2, 3), float(pair.me))).wait()
        if pair.me == 0:
            assert whole[:, 1].tolist() == [k // 2 for k in range(2 * pair.size)]
