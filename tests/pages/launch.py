from page_network import *

load_samples = lambda: drawn
# block
assert fluid.is_server() or samples is drawn
