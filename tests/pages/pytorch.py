# block
dist.destroy_process_group()
# block
hpcdist.torch.drop_tables(model)
words = hpcdist.torch.Embedding(None, 4)
model = torch.nn.Sequential(words, torch.nn.Linear(4, 1))
tables = hpcdist.torch.TableOptimizer(model, "SGD", lr=0.1)
dense = torch.optim.SGD(model[1].parameters(), 0.1)
schedule = torch.optim.lr_scheduler.StepLR(dense, 10)
# block
import hpcdist as fluid

module = torch.nn.Bilinear(4, 4, 1)
x, ids = fluid.data("x", [None, 4]), fluid.data("ids", [None, 4])
# block
