import sys

rooms = ("autodiff", "executor", "graph", "ops", "transpiler", "fluid")
names = {module.__name__ for name, module in sys.modules.items() if name.startswith("hpcdist.")}
names = {name for name in names if not name.startswith("hpcdist.fluid.compat")}  # that finds names
loaded = [name for name in names - {"hpcdist.fluid"} if name.split(".")[1] in rooms]
assert not loaded, loaded
