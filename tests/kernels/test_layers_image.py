"""Layers for images and nets: names, operators and numbers of the original."""

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers, nets
from hpcdist.errors import GraphError
from hpcdist.transpiler.sync_batch_norm import synchronize_batch_norm


def ops(program):
    return [op.type for op in program.global_block().ops]


def only(program, type):
    (op,) = [op for op in program.global_block().ops if op.type == type]
    return op


def test_conv2d_names_and_first_weights_are_those_of_the_original(programs):
    main, startup = programs
    x = fluid.data("x", [None, 3, 8, 8])
    out = layers.conv2d(x, 6, 3, stride=[1, 2], padding="same", groups=3, act="relu")
    assert (out.name, out.shape) == ("conv2d_0.tmp_2", (-1, 6, 8, 4))
    assert ops(main) == ["conv2d", "elementwise_add", "relu"]
    assert main.global_block().var("conv2d_0.w_0").shape == (6, 1, 3, 3)
    assert only(startup, "gaussian_random").attrs["std"] == pytest.approx(0.27216553688)
    attrs = only(main, "conv2d").attrs
    assert (attrs["paddings"], attrs["padding_algorithm"]) == ([0, 0], "SAME")
    deep = layers.conv2d(out, 6, 3, groups=6, use_cudnn=False, bias_attr=False)
    assert deep.name == "depthwise_conv2d_0.tmp_0"


@pytest.mark.parametrize(
    "padding, layout, kept",
    [
        (2, "NCHW", [2, 2]),
        ([1, 2], "NCHW", [1, 2]),
        ([1, 1, 2, 2], "NCHW", [1, 2]),
        ([1, 0, 2, 2], "NCHW", [1, 0, 2, 2]),
        ([[0, 0], [0, 0], [1, 2], [0, 1]], "NCHW", [1, 2, 0, 1]),
        ([[0, 0], [1, 2], [0, 1], [0, 0]], "NHWC", [1, 2, 0, 1]),
    ],
)
def test_padding_may_be_given_in_many_ways(programs, padding, layout, kept):
    x = fluid.data("x", [None, 8, 8, 8])
    layers.conv2d(x, 2, 3, padding=padding, data_format=layout)
    layers.pool2d(x, 3, pool_padding=padding, data_format=layout)
    assert only(programs[0], "conv2d").attrs["paddings"] == kept
    assert only(programs[0], "pool2d").attrs["paddings"] == kept


def test_conv2d_transpose_finds_its_filters_size(programs):
    x = fluid.data("x", [None, 6, 15, 15])
    out = layers.conv2d_transpose(x, 6, output_size=[32, 32], stride=2, padding=1, groups=2)
    assert out.shape == (-1, 6, 32, 32)
    assert programs[0].global_block().var("conv2d_transpose_0.w_0").shape == (6, 3, 6, 6)


def test_the_only_window_may_reach_beyond_the_image(programs):
    # As in Fluid 1.8.5, which divides towards zero: 1 row, windows of 2, a stride of 2.
    x = layers.data("x", [1, 1, 3])
    one = fluid.initializer.Constant(1.0)
    counted = layers.pool2d(x, 2, "avg", 2, exclusive=False)
    greatest = layers.pool2d(x, 2, "max", 2)
    summed = layers.conv2d(x, 1, 2, 2, param_attr=fluid.ParamAttr(initializer=one))
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(programs[1], scope=scope)
    fed = {"x": np.array([[[[1, 2, 4]]]], np.float32)}
    got = exe.run(programs[0], fed, [counted, greatest, summed], scope=scope)
    assert [v.ravel().tolist() for v in got] == [[0.75], [2.0], [3.0]]
    with pytest.raises(GraphError, match="does not fit into the 1 rows"):
        layers.pool2d(x, 3, "max", 2)


def test_adaptive_pools_are_the_operators_of_the_original(programs):
    x = fluid.data("x", [None, 6, 15, 15])
    assert layers.adaptive_pool2d(x, [3, 4], "avg").name == "pool2d_0.tmp_0"
    out, index = layers.adaptive_pool2d(x, 2, "max", require_index=True)
    assert (out.name, index.dtype) == ("max_pool2d_with_index_0.tmp_0", "int32")


def test_batch_norm_has_two_weights_that_learn_and_two_that_follow(programs):
    main, _ = programs
    out = layers.batch_norm(fluid.data("x", [None, 3, 4, 4]), act="relu")
    assert out.name == "batch_norm_0.tmp_3"
    learns = {p.name: p.trainable for p in main.all_parameters()}
    assert learns == {
        f"batch_norm_0.{n}": n in ("w_0", "b_0") for n in ("w_0", "b_0", "w_1", "w_2")
    }
    fluid.optimizer.SGD(0.1).minimize(layers.mean(out))
    grad = only(main, "batch_norm_grad")
    assert sorted(grad.inputs) == ["Bias", "SavedMean", "SavedVariance", "Scale", "X", "Y@GRAD"]
    assert ops(main).count("sgd") == 2


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda x: layers.conv3d(x, 3, 3, groups=2), "2 channels and 3 filters .* 2 groups"),
        (lambda x: layers.conv3d(x, 2, [3, 3]), "filter_size must be one integer or three"),
        (lambda x: layers.conv3d(x, 2, 3, padding=[[1, 0]] * 5), "batch and channels cannot be"),
        (lambda x: layers.conv3d(x, 2, 3, param_attr=False), "needs weights"),
        (lambda x: layers.conv3d(x, 2, 3, data_format="NCHW"), "one of NCDHW, NDHWC, got 'NCHW'"),
        (lambda x: layers.conv3d(x, 2, 3, groups=0), "2 channels and 2 filters .* 0 groups"),
        (lambda x: layers.pool3d(x, 2, pool_padding="VALID", ceil_mode=True), "ceil_mode"),
        (lambda x: layers.adaptive_pool3d(x, 2, "avg", True), "a mean has no index"),
        (lambda x: layers.conv3d_transpose(x, 2), "filter_size or an output_size"),
        (lambda x: layers.pool3d(x, 2, "min"), "pool_type must be one of max, avg"),
    ],
)
def test_volumes_are_checked_as_images_are(build, message):
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x = fluid.data("x", [None, 2, 4, 4, 4])
        with pytest.raises(GraphError, match=message):
            build(x)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda x: layers.conv2d(x, 2, 3, groups=2), "3 channels .* 2 groups"),
        (lambda x: layers.conv2d(x, 2, [3, 3, 3]), "filter_size must be one integer or two"),
        (lambda x: layers.conv2d(x, 2, 3, padding="FULL"), "SAME, VALID"),
        (lambda x: layers.conv2d(x, 2, 3, padding=[1, 2, 3]), "padding must be one integer"),
        (lambda x: layers.conv2d(x, 2, 3, padding=[[1, 0], [0, 0], [0, 0], [0, 0]]), "channels"),
        (lambda x: layers.conv2d(x, 2, 3, param_attr=False), "needs weights"),
        (lambda x: layers.conv2d(x, 2, 9), "does not fit into the 8 rows"),
        (lambda x: layers.conv2d_transpose(x, 2), "filter_size or an output_size"),
        (lambda x: layers.pool2d(x, 2, "min"), "pool_type must be one of max, avg"),
        (lambda x: layers.pool2d(x), "pool_size must be given"),
        (lambda x: layers.pool2d(x, 2, pool_padding="VALID", ceil_mode=True), "ceil_mode"),
        (lambda x: layers.adaptive_pool2d(x, 2, "avg", True), "a mean has no index"),
        (lambda x: layers.batch_norm(x, bias_attr=False), "needs scale and bias"),
        (lambda x: layers.batch_norm(x, momentum=x), "momentum must be a number"),
        (lambda x: nets.img_conv_group(x, [2, 3], 2, conv_padding=[1]), "1 values for 2"),
        (lambda x: nets.scaled_dot_product_attention(x, x, x), r"expected \[batch, length"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_layer(programs, build, message):
    with pytest.raises(GraphError, match=message):
        build(fluid.data("x", [None, 3, 8, 8]))


def test_a_normalization_in_place_gives_the_same_under_a_name_of_its_own(programs):
    main, startup = programs
    x = fluid.data("x", [None, 3, 4, 4])
    hidden = layers.scale(x, 2.0)
    apart, in_place = (layers.batch_norm(hidden, in_place=on) for on in (False, True))
    assert in_place.name not in (hidden.name, apart.name)
    exe, scope = fluid.Executor(), fluid.Scope()
    exe.run(startup, scope=scope)
    fed = np.random.default_rng(0).normal(3, 2, (5, 3, 4, 4)).astype("float32")
    before, one, other = exe.run(main, {"x": fed}, [hidden, apart, in_place], scope=scope)
    np.testing.assert_array_equal(before, 2 * fed)
    np.testing.assert_array_equal(one, other)


def test_a_gradient_through_a_test_normalization_is_refused(programs):
    x = fluid.data("x", [None, 3, 4, 4])
    x.stop_gradient = False
    loss = layers.mean(layers.batch_norm(x, is_test=True))
    with pytest.raises(GraphError, match="use_global_stats=True"):
        fluid.append_backward(loss)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_sync_batch_norm_of_one_process_is_batch_norm(programs, layout):
    main, startup = programs
    startup.random_seed = 3
    x = fluid.data("x", [None, 3, 4, 4])
    hidden = layers.fc(layers.batch_norm(x, data_layout=layout, param_attr="scale"), 2)
    loss = layers.mean(layers.square(hidden))
    fluid.optimizer.SGD(0.1).minimize(loss)
    feed = {"x": np.random.default_rng(0).normal(3, 2, (5, 3, 4, 4)).astype("float32")}
    found = []
    for synchronized in (False, True):
        if synchronized:
            synchronize_batch_norm(main.global_block())
            assert "sync_batch_norm_grad" in [op.type for op in main.global_block().ops]
        exe, scope = fluid.Executor(), fluid.Scope()
        exe.run(startup, scope=scope)
        kept = ["scale", *(n for n in main.global_block().vars if "batch_norm" in n)]
        kept = [n for n in kept if main.global_block().var(n).persistable]
        found.append([exe.run(main, feed, [loss, *kept], scope=scope) for _ in range(3)])
    for one, other in zip(*found, strict=True):
        for mine, same in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine, same)


# -- nets ------------------------------------------------------------------------------------------


def test_img_conv_group_puts_dropout_behind_normalization_only(programs):
    x = fluid.data("x", [None, 3, 8, 8])
    out = nets.img_conv_group(
        x,
        [4, 5],
        pool_size=2,
        pool_stride=2,
        pool_type="avg",
        conv_act="relu",
        conv_with_batchnorm=[True, False],
        conv_batchnorm_drop_rate=0.3,
    )
    conv, normed = ["conv2d", "elementwise_add"], ["batch_norm", "relu", "dropout"]
    assert ops(programs[0]) == [*conv, *normed, *conv, "relu", "pool2d"]
    assert out.shape == (-1, 5, 4, 4)


def run(programs, feed, fetch):
    exe, scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
    exe.run(programs[1], scope=scope)
    return exe.run(programs[0], feed=feed, fetch_list=fetch, scope=scope)


def test_glu_and_attention_are_their_formulas(programs):
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=(2, 3 + (n != "q"), 6)).astype("f") for n in "qkv"}
    q, k, v = (fluid.data(n, [2, *value.shape[1:]]) for n, value in feeds.items())
    gated, context = nets.glu(q), nets.scaled_dot_product_attention(q, k, v)
    assert nets.scaled_dot_product_attention(q, k, v, num_heads=3).shape == (2, 3, 6)
    got = run(programs, feeds, [gated, context])
    a, b = np.split(feeds["q"], 2, -1)
    np.testing.assert_allclose(got[0], a / (1 + np.exp(-b)), rtol=1e-5)
    scores = np.exp(feeds["q"] @ feeds["k"].swapaxes(1, 2) / 6**0.5)
    wanted = scores / scores.sum(-1, keepdims=True) @ feeds["v"]
    np.testing.assert_allclose(got[1], wanted, rtol=1e-5, atol=1e-6)


# -- a whole net -----------------------------------------------------------------------------------


def lenet():
    """Return the programs, the test program and the loss of a small LeNet with batch_norm."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        image = fluid.data("img", [None, 1, 28, 28])
        label = fluid.data("label", [None, 1], "int64")
        x = layers.batch_norm(nets.simple_img_conv_pool(image, 6, 5, 2, 2, act="relu"))
        x = nets.simple_img_conv_pool(x, 16, 5, 2, 2, pool_type="avg", act="relu")
        guess = layers.fc(x, 10, act="softmax")
        loss = layers.mean(layers.cross_entropy(guess, label))
        test = main.clone(for_test=True)
        fluid.optimizer.Momentum(0.05, 0.9).minimize(loss)
    return main, startup, test, loss


def test_a_lenet_trains_and_tests_as_in_the_original():
    """Expected: what paddlepaddle 1.8.5 printed for this net, these weights and these batches."""
    main, startup, test, loss = lenet()
    exe, scope, losses = fluid.Executor(fluid.CPUPlace()), fluid.Scope(), []
    exe.run(startup, scope=scope)
    rng = np.random.RandomState(7)

    def tensor(name):
        return scope.find_var(name).get_tensor()

    for parameter in sorted(main.all_parameters(), key=lambda p: p.name):
        value = rng.uniform(-0.2, 0.2, parameter.shape).astype("float32")
        value += parameter.name == "batch_norm_0.w_2"
        tensor(parameter.name).set(value, fluid.CPUPlace())
    for _ in range(4):
        feed = {
            "img": rng.uniform(-1, 1, (8, 1, 28, 28)).astype("float32"),
            "label": rng.randint(0, 10, (8, 1)).astype("int64"),
        }
        losses.append(exe.run(main, feed, [loss], scope=scope)[0][0])
    losses.append(exe.run(test, feed, [loss], scope=scope)[0][0])
    wanted = [2.3562276, 2.3332033, 2.2409363, 2.3995893, 2.2719927]
    np.testing.assert_allclose(losses, wanted, rtol=1e-6)
    mean = [0.1095061, -0.0362260, 0.0593737, 0.2724063, 0.0711808, 0.1141653]
    variance = [0.7756948, 0.5452033, 0.6975486, 0.7935669, 0.6093310, 0.6904610]
    np.testing.assert_allclose(np.array(tensor("batch_norm_0.w_1")), mean, atol=1e-6)
    np.testing.assert_allclose(np.array(tensor("batch_norm_0.w_2")), variance, atol=1e-6)
    assert np.abs(np.array(tensor("conv2d_0.w_0"))).sum() == pytest.approx(14.9050760, rel=1e-6)
