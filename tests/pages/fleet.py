from page_network import *

network = lambda: loss
my_batches = [feeder.feed(drawn[:8])]
# block
