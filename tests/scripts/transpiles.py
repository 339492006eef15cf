t = fluid.DistributeTranspiler()
t.transpile(
    int(os.environ["PADDLE_TRAINER_ID"]),
    pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"],
    trainers=int(os.environ["PADDLE_TRAINERS"]),
    sync_mode=SYNC,
)
