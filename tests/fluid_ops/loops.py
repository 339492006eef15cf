"""Programs with loops and branches, and what Fluid 1.8.5 computes with them.

    /path/to/python3.7-with-paddlepaddle-1.8.5 -m tests.fluid_ops.loops

from the root of the repository makes ``data/loops.json`` with Fluid itself: values and gradients
after one step of SGD. Written for Python 3.7 too, for Fluid's sake.
"""

import json
import os

import numpy as np

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "loops.json")
LENGTHS = [2, 4, 1]


def while_sum(fluid, layers):
    i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 5)
    total = layers.fill_constant([1], "float32", 0.0)
    holds = layers.less_than(i, n)
    with layers.While(holds).block():
        layers.assign(layers.elementwise_add(total, layers.cast(i, "float32")), total)
        layers.increment(i, 1)
        layers.less_than(i, n, cond=holds)
    return [total, i]


def arrays(fluid, layers):
    x, i = layers.data("x", [3]), layers.fill_constant([1], "int64", 0)
    x.stop_gradient = False
    array = layers.array_write(x, i)
    i = layers.increment(i, 1)
    layers.array_write(layers.scale(x, 2.0), i, array)
    joined = layers.tensor_array_to_tensor(array, axis=1)[0]
    layers.mean(layers.square(joined))
    return [layers.array_read(array, i), layers.array_length(array), joined]


def dynamic_rnn(fluid, layers):
    x = layers.data("ragged", [3], lod_level=1)
    x.stop_gradient = False
    drnn = layers.DynamicRNN()
    with drnn.block():
        word, memory = drnn.step_input(x), drnn.memory(shape=[4], value=0.1)
        hidden = layers.fc([word, memory], 4, act="tanh")
        drnn.update_memory(memory, hidden)
        drnn.output(hidden)
    loss = layers.mean(layers.fc(layers.sequence_last_step(drnn()), 1))
    fluid.optimizer.SGD(0.5).minimize(loss)
    return [loss, drnn(), "ragged@GRAD", "fc_0.w_0@GRAD", "fc_0.w_1@GRAD", "fc_0.b_0@GRAD"]


def nested_dynamic_rnn(fluid, layers):
    """Of sequences of sequences: outer steps are sequences, and sequences or rows come of them."""
    x = layers.data("nested", [3], lod_level=2)
    x.stop_gradient = False
    outer = layers.DynamicRNN()
    with outer.block():
        sentence = outer.step_input(x)
        inner = layers.DynamicRNN()
        with inner.block():
            word = inner.step_input(sentence)
            inner.output(layers.fc(word, 4, act="tanh"))
        outer.output(layers.sequence_last_step(inner()), layers.scale(sentence, 2.0))
    last, twice = outer()
    loss = layers.mean(layers.fc(layers.sequence_last_step(last), 1))
    loss = layers.elementwise_add(loss, layers.mean(layers.square(twice)))
    fluid.optimizer.SGD(0.5).minimize(loss)
    return [loss, last, twice, "nested@GRAD", "fc_0.w_0@GRAD", "fc_0.b_0@GRAD"]


def dynamic_rnn_with_static_inputs(fluid, layers):
    x, state = layers.data("ragged", [3], lod_level=1), layers.data("state", [4])
    state.stop_gradient = False
    encoded = layers.fc(x, 4, act="tanh")
    drnn = layers.DynamicRNN()
    with drnn.block():
        word, same = drnn.step_input(x), drnn.static_input(state)
        of_all = layers.sequence_pool(drnn.static_input(encoded), "sum")
        memory = drnn.memory(init=state, need_reorder=True)
        hidden = layers.fc([word, memory, same, of_all], 4, act="tanh")
        drnn.update_memory(memory, hidden)
        drnn.output(hidden, memory)
    out, before = drnn()
    loss = layers.mean(layers.elementwise_mul(out, before))
    fluid.optimizer.SGD(0.5).minimize(loss)
    return [loss, out, "state@GRAD", "fc_0.w_0@GRAD", "fc_1.w_1@GRAD"]


def static_rnn(fluid, layers):
    x = layers.data("steps", [5, 2, 3], append_batch_size=False)
    x.stop_gradient = False
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(x)
        memory = rnn.memory(shape=[-1, 4], batch_ref=x, ref_batch_dim_idx=1)
        hidden = layers.fc([word, memory], 4, act="tanh")
        rnn.update_memory(memory, hidden)
        rnn.step_output(hidden)
    loss = layers.mean(rnn())
    fluid.optimizer.SGD(0.5).minimize(loss)
    return [loss, rnn(), "steps@GRAD", "fc_0.w_0@GRAD", "fc_0.w_1@GRAD"]


def _branch(fluid, layers, bound):
    x = layers.data("sized", [2, 3], append_batch_size=False)
    x.stop_gradient = False
    small = layers.less_than(layers.reduce_sum(x), layers.fill_constant([1], "float32", bound))
    weight = layers.create_parameter([3, 3], "float32", name="weight")
    y = layers.cond(small, lambda: layers.mul(x, weight), lambda: layers.elementwise_mul(x, x))
    loss = layers.mean(y)
    fluid.optimizer.SGD(0.5).minimize(loss)
    return [loss, y, "sized@GRAD", "weight@GRAD"]


def cond_that_holds(fluid, layers):
    return _branch(fluid, layers, 100.0)


def cond_that_does_not_hold(fluid, layers):
    return _branch(fluid, layers, -100.0)


def while_loop(fluid, layers):
    i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 4)
    x = layers.data("sized", [2, 3], append_batch_size=False)
    found = layers.while_loop(
        lambda i, y: layers.less_than(i, n),
        lambda i, y: [layers.increment(i, 1), layers.scale(y, 1.5)],
        [i, layers.assign(x)],
    )
    return list(found)


def if_else(fluid, layers):
    x = layers.data("x", [3])
    zero = layers.fill_constant_batch_size_like(x, [-1, 1], "float32", 0.0)
    branches = layers.IfElse(layers.less_than(layers.reduce_sum(x, dim=1, keep_dim=True), zero))
    with branches.true_block():
        branches.output(layers.fc(branches.input(x), 2))
    with branches.false_block():
        branches.output(layers.scale(layers.fc(branches.input(x), 2), -1.0))
    (out,) = branches()
    loss = layers.mean(out)
    fluid.optimizer.SGD(0.5).minimize(loss)
    return [loss, out, "fc_0.w_0@GRAD", "fc_1.w_0@GRAD"]


def switch_case_and_case(fluid, layers):
    index = layers.fill_constant([1], "int64", 2)

    def gives(value):
        return lambda: layers.fill_constant([2], "float32", value)

    one = layers.fill_constant([1], "int64", 1)
    pairs = [(layers.less_than(index, one), gives(5.0)), (layers.equal(index, index), gives(6.0))]
    return [
        layers.switch_case(index, {1: gives(1.0), 2: gives(2.0)}, gives(9.0)),
        layers.case(pairs, gives(7.0)),
    ]


def translation(fluid, layers):
    """Search for sentences as the book's machine translation does."""
    words, hidden, beams, end = 12, 5, 3, 1
    context = layers.data("context", [hidden])
    first_ids = layers.data("first_ids", [1], dtype="int64", lod_level=2)
    first_scores = layers.data("first_scores", [1], dtype="float32", lod_level=2)
    longest, step = layers.fill_constant([1], "int64", 6), layers.zeros([1], "int64")
    states = layers.array_write(context, step)
    ids, scores = layers.array_write(first_ids, step), layers.array_write(first_scores, step)
    holds = layers.less_than(step, longest)
    with layers.While(holds).block():
        last_ids, last_score = layers.array_read(ids, step), layers.array_read(scores, step)
        state = layers.sequence_expand(layers.array_read(states, step), last_score)
        word = layers.embedding(last_ids, size=[words, 4], is_sparse=True)
        state = layers.fc([state, word], hidden, act="tanh")
        grouped = layers.lod_reset(state, y=last_score)
        best, candidates = layers.topk(layers.fc(grouped, words, act="softmax"), k=beams)
        so_far = layers.reshape(last_score, [-1])
        total = layers.elementwise_add(layers.log(best), so_far, axis=0)
        chosen, chosen_scores = layers.beam_search(
            last_ids, last_score, candidates, total, beams, end_id=end, level=0
        )
        layers.increment(step, 1)
        layers.array_write(state, step, states)
        layers.array_write(chosen, step, ids)
        layers.array_write(chosen_scores, step, scores)
        goes_on = layers.logical_not(layers.is_empty(chosen))
        layers.logical_and(layers.less_than(step, longest), goes_on, out=holds)
    return list(layers.beam_search_decode(ids, scores, beams, end))


def _state_cell(fluid, layers, context):
    decoders = fluid.contrib.decoder.beam_search_decoder
    first = decoders.InitState(init=context, need_reorder=True)
    cell = decoders.StateCell(inputs={"word": None}, states={"h": first}, out_state="h")

    @cell.state_updater
    def compute(cell):
        fed = [cell.get_state("h"), cell.get_input("word")]
        names = [fluid.ParamAttr("state_w"), fluid.ParamAttr("word_w")]
        new = layers.fc(fed, 5, act="tanh", param_attr=names, bias_attr=fluid.ParamAttr("bias"))
        cell.set_state("h", new)

    return decoders, cell


def training_decoder(fluid, layers):
    words, context = layers.data("ragged", [3], lod_level=1), layers.data("context", [5])
    words.stop_gradient = context.stop_gradient = False
    decoders, cell = _state_cell(fluid, layers, context)
    decoder = decoders.TrainingDecoder(cell)
    with decoder.block():
        decoder.state_cell.compute_state(inputs={"word": decoder.step_input(words)})
        decoder.state_cell.update_states()
        decoder.output(decoder.state_cell.get_state("h"))
    loss = layers.mean(layers.square(decoder()))
    fluid.optimizer.SGD(0.5).minimize(loss)
    return [loss, decoder(), "ragged@GRAD", "context@GRAD", "word_w@GRAD", "state_w@GRAD"]


def search_with_a_state_cell(fluid, layers):
    context = layers.data("context", [5])
    first_ids = layers.data("first_ids", [1], dtype="int64", lod_level=2)
    first_scores = layers.data("first_scores", [1], dtype="float32", lod_level=2)
    decoders, cell = _state_cell(fluid, layers, context)
    decoder = decoders.BeamSearchDecoder(
        cell, first_ids, first_scores, 12, 4, topk_size=5, max_len=6, beam_size=3, end_id=1
    )
    decoder.decode()
    return list(decoder())


PROGRAMS = [
    training_decoder,
    search_with_a_state_cell,
    translation,
    while_sum,
    arrays,
    dynamic_rnn,
    nested_dynamic_rnn,
    dynamic_rnn_with_static_inputs,
    static_rnn,
    cond_that_holds,
    cond_that_does_not_hold,
    while_loop,
    if_else,
    switch_case_and_case,
]


def run(fluid, program):
    """Return the numbers of what a program fetches, in its second step."""
    rng = np.random.RandomState(0)
    values = {"x": rng.randn(5, 3), "ragged": rng.randn(7, 3), "state": rng.randn(3, 4)}
    values.update({"steps": rng.randn(5, 2, 3), "sized": rng.randn(2, 3)})
    values["context"] = rng.randn(3, 5)
    values["nested"] = np.random.RandomState(1).randn(9, 3)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        fetches = program(fluid, fluid.layers)
    place = fluid.CPUPlace()
    exe, scope = fluid.Executor(place), fluid.Scope()
    feed = {n: v.astype("float32") for n, v in values.items() if main.global_block().has_var(n)}
    if "ragged" in feed:
        feed["ragged"] = fluid.create_lod_tensor(feed["ragged"], [LENGTHS], place)
    if "nested" in feed:
        lengths = [[2, 1, 3], [2, 1, 1, 2, 1, 2]]
        feed["nested"] = fluid.create_lod_tensor(feed["nested"], lengths, place)
    if "first_ids" in feed or main.global_block().has_var("first_ids"):
        for name, value in (("first_ids", np.zeros), ("first_scores", np.ones)):
            dtype = "int64" if name == "first_ids" else "float32"
            feed[name] = fluid.create_lod_tensor(value((3, 1), dtype), [[1] * 3, [1] * 3], place)
    with fluid.scope_guard(scope):
        exe.run(startup)
        for parameter in main.global_block().all_parameters():
            drawn = rng.uniform(-1, 1, parameter.shape).astype("float32")
            scope.find_var(parameter.name).get_tensor().set(drawn, place)
        for _ in range(2):
            found = exe.run(main, feed=feed, fetch_list=fetches, return_numpy=False)
    return [np.array(value).reshape(-1).astype("float64").round(6).tolist() for value in found]


def main():
    import paddle.fluid as fluid

    found = {program.__name__: run(fluid, program) for program in PROGRAMS}
    with open(PATH, "w") as file:
        json.dump(found, file)
        file.write("\n")


if __name__ == "__main__":
    main()
