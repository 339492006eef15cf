"""Recurrent networks: LSTM, GRU, cuDNN's LSTM over padded input."""
