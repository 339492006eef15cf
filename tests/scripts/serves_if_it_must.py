if os.environ["PADDLE_TRAINING_ROLE"] == "PSERVER":
    main, startup = t.get_pserver_programs(os.environ["PADDLE_CURRENT_ENDPOINT"])
    exe.run(startup)
    exe.run(main)
    with open(f"applied.{RANK}", "w") as f:
        f.write(str(fluid.runtime.updates_applied()))
    sys.exit()
