"""What ``paddle.io`` is made of."""
