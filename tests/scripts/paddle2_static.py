import paddle
from paddle.distributed import fleet
import paddle.static.nn

paddle.enable_static()
main, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main, startup):
    paddle.seed(3)
    image = paddle.static.data(name="x", shape=[None, 3, 8, 8], dtype="float32")
    label = paddle.static.data(name="y", shape=[None, 1], dtype="int64")
    hidden = paddle.static.nn.conv2d(image, num_filters=4, filter_size=3)
    hidden = paddle.static.nn.batch_norm(hidden, act="relu")
    scores = paddle.static.nn.fc(
        x=hidden, size=5, weight_attr=paddle.ParamAttr(name="w"), activation="tanh"
    )
    loss = paddle.nn.functional.cross_entropy(input=scores, label=label)
    accuracy = paddle.metric.accuracy(input=scores, label=label, k=1)
    fleet.init(is_collective=True)
    fleet.distributed_optimizer(make_optimizer(paddle)).minimize(loss, startup)
exe = paddle.static.Executor(paddle.CPUPlace())
exe.run(startup)
losses = [float(exe.run(main, feed=feed, fetch_list=[loss.name])[0]) for _ in range(3)]
rank = paddle.distributed.get_rank(), paddle.distributed.get_world_size()
