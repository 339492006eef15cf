import os

from page_network import *

os.environ["PADDLE_TRAINER_ENDPOINTS"] = os.environ["PADDLE_CURRENT_ENDPOINT"] = "127.0.0.1:6170"
os.environ["PADDLE_TRAINER_ID"] = "0"
fluid.optimizer.SGD(0.01).minimize(loss)
my_batches = [feeder.feed(drawn[:8])] * 3
# block
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
my_batches = fluid.batch(samples, 32)
# block
