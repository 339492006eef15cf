"""Attention, and Transformers (Vaswani et al., 2017): encoder, decoder, both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.base.errors import GraphError
from hpcdist.fluid import layers
from hpcdist.fluid.compat.paddle2 import composed
from hpcdist.fluid.compat.paddle2.kinds import Count, Probability
from hpcdist.fluid.compat.paddle2.nn import functional
from hpcdist.fluid.compat.paddle2.nn.layer.common import Dropout, Linear, activation_of
from hpcdist.fluid.compat.paddle2.nn.layer.container import LayerList
from hpcdist.fluid.compat.paddle2.nn.layer.layers import Layer
from hpcdist.fluid.compat.paddle2.nn.layer.norm import LayerNorm
from hpcdist.fluid.compat.public_names import public
from hpcdist.graph.dtypes import is_float
from hpcdist.graph.variable import Variable


def _mask(mask: Variable | None, dtype: str) -> Variable | None:
    """Return the summand of scores: 0 or -1e9 of a bool or integer mask (0: hidden)."""
    if mask is None or is_float(mask.dtype):
        return mask
    return layers.scale(composed.cast(mask, dtype), 1e9, -1.0, bias_after_scale=False)


class MultiHeadAttention(Layer):
    """Attend in ``num_heads`` parts of ``embed_dim``: [batch, length, embed_dim] in and out."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: Probability = 0.0,
        kdim: int | None = None,
        vdim: int | None = None,
        need_weights: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise GraphError(
                f"paddle.nn.MultiHeadAttention: embed_dim {embed_dim} cannot be divided among "
                f"{num_heads} heads"
            )
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.head_dim, self.need_weights = embed_dim // num_heads, need_weights
        attrs = weight_attr, bias_attr
        self.q_proj = Linear(embed_dim, embed_dim, *attrs)
        self.k_proj = Linear(kdim or embed_dim, embed_dim, *attrs)
        self.v_proj = Linear(vdim or embed_dim, embed_dim, *attrs)
        self.out_proj = Linear(embed_dim, embed_dim, *attrs)

    def _heads(self, x: Variable) -> Variable:
        parts = layers.reshape(x, [0, 0, self.num_heads, self.head_dim])
        return layers.transpose(parts, [0, 2, 1, 3])

    def forward(
        self,
        query: Variable,
        key: Variable | None = None,
        value: Variable | None = None,
        attn_mask: Variable | None = None,
        cache: Any = None,
    ) -> Any:
        """Append the attention; with need_weights, return the weights, too."""
        if cache is not None:
            raise GraphError("paddle.nn.MultiHeadAttention: there is no cache; give whole keys")
        key = query if key is None else key
        value = query if value is None else value
        q, k, v = (
            self._heads(project(x))
            for project, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        scores = composed.matmul(layers.scale(q, self.head_dim**-0.5), k, transpose_y=True)
        added = _mask(attn_mask, scores.dtype)
        if added is not None:
            scores = layers.elementwise_add(scores, added)
        shares = functional.softmax(scores)
        if self.dropout:
            shares = functional.dropout(shares, self.dropout, training=self.training)
        joined = layers.transpose(composed.matmul(shares, v), [0, 2, 1, 3])
        out = self.out_proj(layers.reshape(joined, [0, 0, self.embed_dim]))
        return (out, shares) if self.need_weights else out


def _each(attr: Any, count: int) -> list[Any]:
    """Return the attributes of ``count`` parts of a layer: those given, of fewer the last again."""
    given = list(attr) if isinstance(attr, (list, tuple)) else [attr]
    return [*given[: count - 1], *[given[0]] * (count - 1 - len(given)), given[-1]]


class _AttentionLayer(Layer):
    """Base of a layer with attentions and two Linear layers, each with a norm and dropout."""

    attentions: Sequence[str]  # their names
    self_attn: MultiHeadAttention
    cross_attn: MultiHeadAttention
    norm1: LayerNorm
    norm2: LayerNorm
    norm3: LayerNorm
    dropout1: Dropout
    dropout2: Dropout
    dropout3: Dropout

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: Count,
        dropout: Probability = 0.1,
        activation: str = "relu",
        attn_dropout: Probability | None = None,
        act_dropout: Probability | None = None,
        normalize_before: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
    ) -> None:
        config = dict(locals())
        for key in ("self", "__class__"):
            config.pop(key)
        super().__init__()
        self._config = config
        self.normalize_before = normalize_before
        count = len(self.attentions) + 1
        weights, biases = (_each(attr, count) for attr in (weight_attr, bias_attr))
        of_attention = dropout if attn_dropout is None else attn_dropout
        for name, weight, bias in zip(self.attentions, weights, biases):
            attention = MultiHeadAttention(
                d_model, nhead, of_attention, weight_attr=weight, bias_attr=bias
            )
            setattr(self, name, attention)
        self.linear1 = Linear(d_model, dim_feedforward, weights[-1], biases[-1])
        self.dropout = Dropout(dropout if act_dropout is None else act_dropout)
        self.linear2 = Linear(dim_feedforward, d_model, weights[-1], biases[-1])
        for k in range(count):
            setattr(self, f"norm{k + 1}", LayerNorm(d_model))
        for k in range(count):
            setattr(self, f"dropout{k + 1}", Dropout(dropout))
        where = f"paddle.nn.{type(self).__name__}: activation"
        self.activation = activation_of(where, activation)


class TransformerEncoderLayer(_AttentionLayer):
    """Attention and two Linear layers, each with a residual, a norm and dropout."""

    attentions = ("self_attn",)

    def forward(self, src: Variable, src_mask: Variable | None = None, cache: Any = None) -> Any:
        """Append the layer."""
        inside = self.norm1(src) if self.normalize_before else src
        attended = self.self_attn(inside, attn_mask=src_mask, cache=cache)
        src = layers.elementwise_add(src, self.dropout1(attended))
        src = src if self.normalize_before else self.norm1(src)
        inside = self.norm2(src) if self.normalize_before else src
        moved = self.linear2(self.dropout(self.activation(self.linear1(inside))))
        src = layers.elementwise_add(src, self.dropout2(moved))
        return src if self.normalize_before else self.norm2(src)


class TransformerDecoderLayer(_AttentionLayer):
    """Attention to the target and to ``memory``, and two Linear layers, as an encoder's layer."""

    attentions = ("self_attn", "cross_attn")

    def forward(
        self,
        tgt: Variable,
        memory: Variable,
        tgt_mask: Variable | None = None,
        memory_mask: Variable | None = None,
        cache: Any = None,
    ) -> Variable:
        """Append the layer."""
        if cache is not None:
            raise GraphError(
                "paddle.nn.TransformerDecoderLayer: there is no cache; give all of tgt"
            )
        parts = (
            (self.norm1, self.dropout1, lambda x: self.self_attn(x, attn_mask=tgt_mask)),
            (self.norm2, self.dropout2, lambda x: self.cross_attn(x, memory, memory, memory_mask)),
            (
                self.norm3,
                self.dropout3,
                lambda x: self.linear2(self.dropout(self.activation(self.linear1(x)))),
            ),
        )
        for norm, dropout, part in parts:
            inside = norm(tgt) if self.normalize_before else tgt
            tgt = layers.elementwise_add(tgt, dropout(part(inside)))
            tgt = tgt if self.normalize_before else norm(tgt)
        return tgt


class TransformerEncoder(Layer):
    """Layers like ``encoder_layer``, one after the other, and ``norm`` at the end."""

    def __init__(
        self, encoder_layer: TransformerEncoderLayer, num_layers: Count, norm: Any = None
    ) -> None:
        super().__init__()
        others = [type(encoder_layer)(**encoder_layer._config) for _ in range(num_layers - 1)]
        self.layers = LayerList([encoder_layer, *others])
        self.num_layers, self.norm = num_layers, norm

    def forward(self, src: Variable, src_mask: Variable | None = None, cache: Any = None) -> Any:
        """Append the layers."""
        for layer in self.layers:
            src = layer(src, src_mask=src_mask, cache=cache)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Layer):
    """Layers like ``decoder_layer``, one after the other, and ``norm`` at the end."""

    def __init__(
        self, decoder_layer: TransformerDecoderLayer, num_layers: Count, norm: Any = None
    ) -> None:
        super().__init__()
        others = [type(decoder_layer)(**decoder_layer._config) for _ in range(num_layers - 1)]
        self.layers = LayerList([decoder_layer, *others])
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        tgt: Variable,
        memory: Variable,
        tgt_mask: Variable | None = None,
        memory_mask: Variable | None = None,
        cache: Any = None,
    ) -> Variable:
        """Append the layers."""
        for layer in self.layers:
            tgt = layer(tgt, memory, tgt_mask, memory_mask, cache)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Layer):
    """An encoder of ``src`` and a decoder of ``tgt``, each with a norm at its end."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: Count = 2048,
        dropout: Probability = 0.1,
        activation: str = "relu",
        attn_dropout: Probability | None = None,
        act_dropout: Probability | None = None,
        normalize_before: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
        custom_encoder: Any = None,
        custom_decoder: Any = None,
    ) -> None:
        super().__init__()
        alike = (d_model, nhead, dim_feedforward, dropout, activation)
        more = (attn_dropout, act_dropout, normalize_before)
        attrs = [_each(attr, 3) for attr in (weight_attr, bias_attr)]
        if custom_encoder is None:
            ends = ([attr[0], attr[-1]] for attr in attrs)
            layer = TransformerEncoderLayer(*alike, *more, *ends)
            custom_encoder = TransformerEncoder(layer, num_encoder_layers, LayerNorm(d_model))
        self.encoder = custom_encoder
        if custom_decoder is None:
            own = TransformerDecoderLayer(*alike, *more, *attrs)
            custom_decoder = TransformerDecoder(own, num_decoder_layers, LayerNorm(d_model))
        self.decoder = custom_decoder
        self.d_model, self.nhead = d_model, nhead

    def forward(
        self,
        src: Variable,
        tgt: Variable,
        src_mask: Variable | None = None,
        tgt_mask: Variable | None = None,
        memory_mask: Variable | None = None,
    ) -> Variable:
        """Append both."""
        return self.decoder(tgt, self.encoder(src, src_mask), tgt_mask, memory_mask)

    def generate_square_subsequent_mask(self, length: int) -> Variable:
        """Return the mask that hides what comes later: -inf above the diagonal, else 0."""
        return layers.assign(np.triu(np.full((length, length), -np.inf, "float32"), 1))


__all__ = public(globals())
