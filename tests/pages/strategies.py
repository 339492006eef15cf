from page_network import *

from hpcdist import fleet

strategy = fleet.DistributedStrategy()
# block
# block
# block
# block
# block
# block
# block
# block
