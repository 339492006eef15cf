from page_network import *

trained()
batch, evaluate = feeder.feed(drawn[:8]), lambda: 0.5
# block
# block
