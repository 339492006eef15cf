from page_network import *

trained()
# block
