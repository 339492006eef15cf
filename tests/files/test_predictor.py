"""Predictors: a saved model that is run without its Program in sight."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.core import AnalysisConfig, PaddleDType, PaddleTensor, create_paddle_predictor
from hpcdist.errors import FeedError, MissingNameError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def saved(tmp_path):
    """Save a model twice, and return its directories, with what it makes of X."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup), fluid.scope_guard(scope):
        x, words = fluid.data("x", [None, 3]), fluid.data("w", [None, 1], "int64", lod_level=1)
        pooled = layers.sequence_pool(layers.cast(words, "float32"), "sum")
        made = layers.fc(x, 2, param_attr="weight") + pooled
        exe = fluid.Executor()
        exe.run(startup)
        for part, files in (("one", {}), ("two", {"model_filename": "m", "params_filename": "p"})):
            fluid.io.save_inference_model(
                str(tmp_path / part), ["x", "w"], [made], exe, main, **files
            )
        words = fluid.create_lod_tensor(np.array([[1], [2], [3]]), [[1, 2]], None)
        (expected,) = exe.run(main, feed={"x": X, "w": words}, fetch_list=[made])
    return tmp_path, expected


def test_a_predictor_keeps_inputs_and_outputs_in_tensors(saved):
    directory, expected = saved
    config = AnalysisConfig(str(directory / "one"))
    config.disable_gpu()
    config.switch_use_feed_fetch_ops(False)
    config.set_cpu_math_library_num_threads(2)
    assert (config.model_dir(), config.prog_file(), config.use_gpu()) == (
        str(directory / "one"),
        "",
        False,
    )
    predictor = create_paddle_predictor(config).clone()
    assert predictor.get_input_names() == ["x", "w"]
    assert predictor.get_input_tensor_shape()["x"] == [-1, 3]
    with pytest.raises(FeedError, match=r"\['x', 'w'\] have no value"):
        predictor.zero_copy_run()
    x, words = map(predictor.get_input_tensor, predictor.get_input_names())
    x.reshape([2, 3])
    x.copy_from_cpu(X)
    words.copy_from_cpu(np.array([[1], [2], [3]]))
    words.set_lod([[0, 1, 3]])
    assert predictor.zero_copy_run()
    out = predictor.get_output_tensor(predictor.get_output_names()[0])
    np.testing.assert_array_equal(out.copy_to_cpu(), expected)
    assert (out.shape(), out.type(), out.lod()) == ([2, 2], PaddleDType.FLOAT32, [])


def test_a_predictor_runs_tensors_by_name_or_in_order(saved):
    directory, expected = saved
    config = AnalysisConfig(str(directory / "two/m"), str(directory / "two/p"))
    predictor = create_paddle_predictor(config)
    words = PaddleTensor(np.array([[1], [2], [3]]))
    words.lod = [[0, 1, 3]]
    assert words.dtype is PaddleDType.INT64 and words.data.tolist() == [1, 2, 3]
    (out,) = predictor.run([PaddleTensor(X), words])
    np.testing.assert_array_equal(out.as_ndarray(), expected)
    assert out.shape == [2, 2] and out.name == predictor.get_output_names()[0]
    words.name = "v"  # which counts only if names are asked for, as in Fluid
    (out,) = predictor.run([PaddleTensor(X), words])
    np.testing.assert_array_equal(out.as_ndarray(), expected)
    config.switch_specify_input_names(True)
    words.name = "w"
    (out,) = predictor.run([words, PaddleTensor(X, "x")])
    np.testing.assert_array_equal(out.as_ndarray(), expected)
    words.name = "v"
    with pytest.raises(FeedError, match="no input 'v'"):
        predictor.run([PaddleTensor(X, "x"), words])
    with pytest.raises(FeedError, match="expected 2 inputs"):
        predictor.run([words])
    with pytest.raises(FeedError, match="no output 'z'"):
        predictor.get_output_tensor("z")
    with pytest.raises(MissingNameError, match="in its own precision"):
        config.enable_tensorrt_engine()


def test_two_predictors_share_no_variables(saved):
    directory, expected = saved
    with fluid.scope_guard(fluid.Scope()) as _, fluid.program_guard(fluid.Program()):
        exe = fluid.Executor()
        main, feeds, fetches = fluid.io.load_inference_model(str(directory / "one"), exe)
        weight = fluid.global_scope().find_var("weight").get_tensor()
        weight.set(2 * np.array(weight), exe.place)
        fluid.io.save_inference_model(str(directory / "other"), feeds, fetches, exe, main)
    first, second = (
        create_paddle_predictor(AnalysisConfig(str(directory / name))) for name in ("one", "other")
    )
    words = PaddleTensor(np.array([[1], [2], [3]]), "w")
    words.lod = [[0, 1, 3]]
    sums = np.array([[1], [5]], np.float32)
    (out,) = second.run([PaddleTensor(X), words])
    np.testing.assert_allclose(out.as_ndarray() - sums, 2 * (expected - sums), rtol=1e-6)
    (out,) = first.run([PaddleTensor(X), words])
    np.testing.assert_array_equal(out.as_ndarray(), expected)
