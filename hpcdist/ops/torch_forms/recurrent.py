"""Forms of single steps of recurrent layers, and of dropout."""

from __future__ import annotations

from hpcdist.ops.random.counter import LOW, key_of, philox_words
from hpcdist.ops.random.dropout import keep_scale, keep_threshold, test_scale
from hpcdist.ops.random.philox import PER_BLOCK
from hpcdist.ops.recurrent.gru import weights_of
from hpcdist.ops.torch_forms import by_autograd, form


# -- one step --------------------------------------------------------------------------------------
@form("lstm_unit")
def lstm_unit(torch, x, c_prev, forget_bias):
    i, f, o, candidate = torch.chunk(x, 4, 1)
    cell = torch.sigmoid(f + forget_bias) * c_prev + torch.sigmoid(i) * torch.tanh(candidate)
    return cell, torch.sigmoid(o) * torch.tanh(cell)


def _activated(torch, kind, x):
    """Apply the activation of a number, as Fluid counts them."""
    return (lambda x: x, torch.sigmoid, torch.tanh, torch.relu)[kind](x)


@form("gru_unit")
def gru_unit(torch, x, last, weight, bias, gate_activation, activation, origin_mode):
    width = last.shape[1]
    of_gates, of_candidate = weights_of(weight)
    projected = x if bias is None else x + bias.reshape(1, -1)
    gates = _activated(torch, gate_activation, projected[:, : 2 * width] + last @ of_gates)
    update, reset = torch.chunk(gates, 2, 1)
    reset_last = last * reset
    candidate = _activated(torch, activation, projected[:, 2 * width :] + reset_last @ of_candidate)
    mixed = candidate - last
    hidden = candidate - update * mixed if origin_mode else last + update * mixed
    return torch.cat([gates, candidate], 1), reset_last, hidden


by_autograd("lstm_unit", "gru_unit")


# -- dropout ---------------------------------------------------------------------------------------
def _by_counter(x, rows, is_test, fix_seed, given_seed, **_):
    """Return whether the mask follows from where elements are in the batch, or there is none."""
    return is_test or (x.lod is None and not fix_seed and given_seed is None)


def _words(torch, size, first, key, draw):
    """Return a word of 32 bits, in an int64, for each element; ``first``: of those in the batch."""
    blocks = torch.arange(size // PER_BLOCK + 2, device=draw.device) + first // PER_BLOCK
    low, high = (word.expand(blocks.shape) for word in (draw & LOW, draw >> 32))
    words = torch.stack(philox_words(blocks & LOW, blocks >> 32, low, high, key), 1)
    return words.reshape(-1)[torch.arange(size, device=draw.device) + first % PER_BLOCK]


@form("dropout", when=_by_counter, draws=True)
def dropout(torch, x, rows, dropout_prob, is_test, seed, stream, dropout_implementation, draw, **_):
    if is_test:
        kept = x * test_scale(dropout_prob, dropout_implementation)
        return kept, torch.ones_like(x, dtype=torch.uint8)
    if dropout_prob == 1.0:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.uint8)
    # Rows: the first row, and how many rows of the batch are here.
    first = torch.zeros_like(draw) if rows is None else rows[0] * (x.numel() // rows[1])
    words = _words(torch, x.numel(), first, key_of(seed, stream), draw)
    mask = (words >= int(keep_threshold(dropout_prob))).reshape(x.shape)
    return x * mask * keep_scale(dropout_prob, dropout_implementation), mask.to(torch.uint8)


@form("dropout_grad")
def dropout_grad(torch, mask, dout, dropout_prob, is_test, dropout_implementation, **_):
    if is_test:
        return dout * test_scale(dropout_prob, dropout_implementation)
    dx = dout * mask
    return dx if dropout_prob == 1.0 else dx * keep_scale(dropout_prob, dropout_implementation)
