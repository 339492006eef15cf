"""What holds for the buckets of any gradients."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcdist.comm.bucket import MIB, Bucket, Fusing, Gradient, buckets

GRADIENTS = st.lists(
    st.builds(
        Gradient,
        param=st.sampled_from(["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "conv", "bn.w.x", "emb", ".w"]),
        dtype=st.sampled_from(["float32", "float32", "float64"]),
        nbytes=st.integers(1, 3 * MIB),
    ),
    max_size=30,
)
FUSINGS = st.builds(
    Fusing, memory_mb=st.sampled_from([-1, 0, 0.5, 1, 4, 32]), groups_size=st.integers(1, 8)
)


@given(GRADIENTS, FUSINGS)
def test_every_gradient_is_in_one_bucket_of_its_type(gradients: list[Gradient], fusing: Fusing):
    found = buckets(gradients, fusing)
    assert sorted(i for bucket in found for i in bucket) == list(range(len(gradients)))
    assert all(len({gradients[i].dtype for i in bucket}) == 1 for bucket in found)


@given(GRADIENTS, FUSINGS)
def test_buckets_come_as_they_fill(gradients: list[Gradient], fusing: Fusing):
    last = [max(bucket) for bucket in buckets(gradients, fusing)]
    assert last == sorted(last)


@given(GRADIENTS, FUSINGS)
def test_a_layer_is_not_divided(gradients: list[Gradient], fusing: Fusing):
    for bucket in buckets(gradients, fusing):
        inside = {(gradients[i].dtype, gradients[i].layer) for i in bucket}
        for i, gradient in enumerate(gradients):
            assert ((gradient.dtype, gradient.layer) in inside) == (i in bucket)


@given(GRADIENTS, FUSINGS)
def test_a_bucket_is_closed_when_it_is_full_and_not_before(
    gradients: list[Gradient], fusing: Fusing
):
    def layers(bucket: Bucket) -> list[str]:
        return list(dict.fromkeys(gradients[i].layer for i in bucket))

    def full(bucket: Bucket) -> bool:
        crowded = fusing.groups_size > 1 and len(bucket) > fusing.groups_size
        return crowded or sum(gradients[i].nbytes for i in bucket) >= fusing.memory_mb * MIB

    for dtype in ("float32", "float64"):
        own = [b for b in buckets(gradients, fusing) if gradients[b[0]].dtype == dtype]
        if fusing.memory_mb < 0:
            assert all(len(layers(bucket)) == 1 for bucket in own)
        elif fusing.memory_mb == 0:
            assert len(own) <= 1
        else:
            assert sum(not full(bucket) for bucket in own) <= 1
            for bucket in own:
                final = layers(bucket)[-1]
                assert not full(tuple(i for i in bucket if gradients[i].layer != final))
