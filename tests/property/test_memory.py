"""Buffers that live at the same time never overlap, whatever their sizes and lifetimes."""

from hypothesis import given
from hypothesis import strategies as st

from hpcdist.executor.memory import ALIGNMENT, Lifetime, assign_offsets

lifetimes = st.lists(
    st.builds(
        lambda first, length, nbytes: Lifetime(first, first + length, nbytes),
        st.integers(-1, 30),
        st.integers(0, 10),
        st.integers(0, 1000),
    ),
    max_size=40,
)


def overlap(a, b):
    return not (a[1] <= b[0] or b[1] <= a[0])


@given(lifetimes)
def test_living_buffers_are_disjoint(buffers):
    offsets, total = assign_offsets(buffers)
    spans = [(o, o + b.nbytes) for o, b in zip(offsets, buffers)]
    for i, a in enumerate(buffers):
        assert offsets[i] % ALIGNMENT == 0
        assert spans[i][1] <= total
        for j, b in enumerate(buffers[:i]):
            together = a.first <= b.last and b.first <= a.last
            assert not (together and a.nbytes and b.nbytes and overlap(spans[i], spans[j]))


@given(lifetimes)
def test_pool_is_never_larger_than_no_reuse(buffers):
    _, total = assign_offsets(buffers)
    assert total <= sum(-(-b.nbytes // ALIGNMENT) * ALIGNMENT for b in buffers)


def test_buffers_that_follow_one_another_share():
    _, total = assign_offsets([Lifetime(0, 1, 640), Lifetime(2, 3, 640), Lifetime(4, 5, 128)])
    assert total == 640
