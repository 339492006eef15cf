"""Attributes that Fluid's and Paddle 2's operators have: read exactly, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest

import hpcdist as fluid
from hpcdist import layers
from hpcdist.errors import CheckpointError, GraphError
from hpcdist.graph import Program

X = np.arange(16, dtype=np.float32).reshape(4, 4)
ASKED = [
    ("matmul", ("X", "Y"), {"head_number": 2}, {"head_number": 1}),
    ("uniform_random_batch_size_like", ("Input",), {"diag_num": 3}, {"diag_num": 0}),
    ("reduce_sum", ("X",), {"out_dtype": 6}, {"out_dtype": -1}),
    ("bilinear_interp", ("X",), {"interp_method": "nearest"}, {"interp_method": "bilinear"}),
    ("conv2d_transpose", ("Input", "Filter"), {"output_padding": [1, 1]}, {"output_padding": []}),
    ("relu", ("X",), {"data_format": "NHWC"}, {"data_format": "NCHW"}),
    ("cumsum", ("X",), {"flatten": True}, {"flatten": False}),
    ("save", ("X",), {"overwrite": False, "file_path": "f"}, {"overwrite": True}),
]


def _appended(type: str, slots: tuple[str, ...], attrs: dict[str, object]) -> Program:
    program = Program()
    with fluid.program_guard(program, Program()):
        shape = [1, 1, 4, 4] if "interp" in type or "conv" in type else [4, 4]
        x = fluid.data("x", shape, "float32")
        block = program.global_block()
        out = {} if type == "save" else {"Out": block.create_var("out", dtype="float32")}
        if "conv" in type:
            out = {"Output": out["Out"]}
        sizes = {"out_h": 8, "out_w": 8} if "interp" in type else {}
        block.append_op(type, dict.fromkeys(slots, x), out, {**sizes, **attrs})
    return program


@pytest.mark.parametrize("type, slots, asked, usual", ASKED, ids=[case[0] for case in ASKED])
def test_what_an_operator_would_ignore_is_refused_by_name(type, slots, asked, usual):
    _appended(type, slots, usual)
    (name,) = set(asked) - {"shape", "file_path"}
    with pytest.raises(GraphError, match=rf"op #0 {type}.* with {name}="):
        _appended(type, slots, asked)


def test_so_it_is_in_a_stored_program():
    program = _appended("cumsum", ("X",), {})
    program.global_block().ops[0].attrs["flatten"] = True
    with pytest.raises(CheckpointError, match="cumsum with flatten=True"):
        Program.parse_from_string(program.desc.serialize_to_string())


def test_background_label_of_a_detection_map_is_0():
    program = Program()
    with fluid.program_guard(program, Program()):
        boxes = fluid.data("boxes", [None, 6], "float32", lod_level=1)
        label = fluid.data("label", [None, 6], "float32", lod_level=1)
        with pytest.raises(GraphError, match="background_label=2"):
            layers.detection_map(boxes, label, 3, background_label=2)


@pytest.mark.parametrize("like", [False, True], ids=["fill_constant", "like a batch"])
@pytest.mark.parametrize(
    "dtype, value", [("int64", 2**53 + 1), ("int64", 2**24 + 1), ("float64", 0.1)]
)
def test_constants_are_exact_in_programs_and_in_fluids_format(dtype, value, like):
    program = Program()
    with fluid.program_guard(program, Program()):
        x = fluid.data("x", [4, 4], "float32")
        if like:
            out = layers.fill_constant_batch_size_like(x, [-1], dtype, value)
        else:
            out = layers.fill_constant([4], dtype, value)
    read = Program.parse_from_string(program.desc.serialize_to_string())
    for one in (program, read):
        (got,) = fluid.Executor().run(one, feed={"x": X}, fetch_list=[out.name])
        np.testing.assert_array_equal(got, np.full(4, value, dtype))


def test_a_constant_may_be_told_as_text_alone():
    program = _appended(
        "fill_constant", (), {"shape": [2], "dtype": 3, "str_value": str(2**53 + 1)}
    )
    (got,) = fluid.Executor().run(program, fetch_list=["out"])
    np.testing.assert_array_equal(got, np.full(2, 2**53 + 1))


def test_no_element_type_is_the_usual_one():
    program = _appended("arg_max", ("X",), {"axis": 1, "dtype": -1})
    (got,) = fluid.Executor().run(program, feed={"x": X}, fetch_list=["out"])
    assert got.dtype == np.int64 and got.tolist() == [3, 3, 3, 3]


def test_float16_is_the_nearest():
    program = Program()
    with fluid.program_guard(program, Program()):
        x = fluid.data("x", [2], "float32")
        half = layers.cast(layers.cast(x, "float16"), "float32")
    fed = {"x": np.float32([0.7, -0.3])}
    (got,) = fluid.Executor().run(program, feed=fed, fetch_list=[half])
    np.testing.assert_array_equal(got, np.float32([0.7001953, -0.30004883]))
