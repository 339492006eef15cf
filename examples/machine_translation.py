"""Machine translation: a bidirectional encoder, a decoder with attention, and beam search.

    python -m hpcdist examples/machine_translation.py
    mpirun -n 4 python -m hpcdist --pservers 2 examples/machine_translation.py

A recurrent encoder reads a sentence in both directions. The decoder is a custom cell: at each step
it weights the words of the sentence (attention) and predicts the next word. In training it is given
the words of the translation; in a test it continues from its own words and keeps the best beams.
Sentences are generated: every word has one translation, but an adjective comes after its noun.
After each epoch the script prints the cost of a sentence, and the shares of words and sentences of
a test set that are translated correctly; on many ranks they are those of a single process.
"""

import argparse

import numpy as np

import hpcdist as fluid

layers = fluid.layers

START, END = 0, 1
NOUNS, ADJECTIVES = range(2, 22), range(22, 32)
WORDS, LONGEST = 32, 6


def sentences(count, seed):
    """Return a reader of (words, their number, start + translation, translation + end, length)."""

    def padded(words):
        return words + [END] * (LONGEST + 1 - len(words))

    def read():
        random = np.random.default_rng(seed)
        for _ in range(count):
            words, translated = [], []
            for _ in range(random.integers(1, LONGEST // 2 + 1)):
                noun = int(random.choice(NOUNS))
                described = [int(random.choice(ADJECTIVES))] * int(random.integers(2))
                words += [*described, noun]
                # Nouns change places with nouns, adjectives with adjectives.
                translated += [23 - noun, *(53 - word for word in described)]
            given, wanted = [START, *translated], [*translated, END]
            yield padded(words), len(words), padded(given), padded(wanted), len(wanted)

    return read


class DecoderCell(layers.RNNCell):
    """A gated recurrent unit that looks at the encoded sentence [N, LONGEST + 1, 2 * width]."""

    def __init__(self, width):
        self.width = width
        self.unit = layers.GRUCell(width, fluid.ParamAttr("decoder"), fluid.ParamAttr("decoder_b"))

    def call(self, inputs, states, encoded, beyond):
        """Return hidden values, twice; ``beyond`` [N, 1, LONGEST + 1] is -1e9 where no word is."""
        question = layers.fc(states, 2 * self.width, param_attr="question", bias_attr=False)
        fits = layers.matmul(layers.unsqueeze(question, [1]), encoded, transpose_y=True)
        weights = layers.softmax(layers.elementwise_add(fits, beyond))
        seen = layers.squeeze(layers.matmul(weights, encoded), [1])
        return self.unit(layers.concat([inputs, seen], axis=1), states)


def vectors(words, width, side):
    """Return vectors of words, of one language."""
    return fluid.embedding(words, [WORDS, width], param_attr=fluid.ParamAttr(side))


def scores(hidden):
    """Return what is to be said for each word as the next one."""
    flat = len(hidden.shape) - 1
    return layers.fc(hidden, WORDS, num_flatten_dims=flat, param_attr="said", bias_attr="said_b")


def encoder(width):
    """Return the inputs, the encoded sentence, what lies beyond it, and the decoder's beginning."""
    words = fluid.data("words", [None, LONGEST + 1], dtype="int64")
    length = fluid.data("length", [None], dtype="int64")
    fed = vectors(words, width, "source")
    found = [
        layers.rnn(
            layers.GRUCell(width, fluid.ParamAttr(way), fluid.ParamAttr(f"{way}_b")),
            fed,
            sequence_length=length,
            is_reverse=way == "back",
        )
        for way in ("ahead", "back")
    ]
    encoded = layers.concat([out for out, _ in found], axis=2)
    begin = layers.fc(found[1][1], width, act="tanh", param_attr="begin", bias_attr="begin_b")
    mask = layers.sequence_mask(length, LONGEST + 1, "float32")
    beyond = layers.unsqueeze(layers.scale(mask, 1e9, -1.0, bias_after_scale=False), [1])
    return [words, length], encoded, beyond, begin


def training_network(width):
    """Return the inputs and the cost of a sentence."""
    inputs, encoded, beyond, begin = encoder(width)
    given = fluid.data("given", [None, LONGEST + 1], dtype="int64")
    wanted = fluid.data("wanted", [None, LONGEST + 1], dtype="int64")
    count = fluid.data("count", [None], dtype="int64")
    fed = vectors(given, width, "target")
    hidden, _ = layers.rnn(DecoderCell(width), fed, begin, encoded=encoded, beyond=beyond)
    cost = layers.softmax_with_cross_entropy(scores(hidden), layers.unsqueeze(wanted, [2]))
    mask = layers.sequence_mask(count, LONGEST + 1, "float32")
    of_sentence = layers.reduce_sum(layers.elementwise_mul(layers.squeeze(cost, [2]), mask), dim=1)
    return [*inputs, given, wanted, count], layers.mean(of_sentence)


def translating_network(width, beams):
    """Return the words of the best sentences, [N, steps, beams], the best beam first."""
    _, encoded, beyond, begin = encoder(width)
    decoder = layers.BeamSearchDecoder(
        DecoderCell(width),
        START,
        END,
        beams,
        embedding_fn=lambda words: vectors(words, width, "target"),
        output_fn=scores,
    )
    repeated = {
        name: layers.BeamSearchDecoder.tile_beam_merge_with_batch(value, beams)
        for name, value in (("encoded", encoded), ("beyond", beyond))
    }
    sentences, _ = layers.dynamic_decode(decoder, begin, LONGEST, is_test=True, **repeated)
    return sentences


def main():
    """Train, and print how well a test set is translated after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=32, help="of vectors and hidden values")
    parser.add_argument("--beams", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="sentences, over all trainers")
    parser.add_argument("--sentences", type=int, default=6400, help="of an epoch")
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--place", type=fluid.place, default="cpu", help="cpu, or gpu: this rank's")
    options = parser.parse_args()

    fluid.default_startup_program().random_seed = 7
    inputs, loss = training_network(options.width)
    clip = fluid.clip.GradientClipByGlobalNorm(5.0)
    fluid.optimizer.Adam(options.rate, grad_clip=clip).minimize(loss)
    translating = fluid.Program()
    with fluid.program_guard(translating, fluid.Program()):
        best = translating_network(options.width, options.beams)
    exe = fluid.Executor(options.place)
    exe.run(fluid.default_startup_program())
    names = [variable.name for variable in inputs]

    def feeds(count, seed, size):
        for batch in fluid.batch(sentences(count, seed), size)():
            yield {name: np.array(column) for name, column in zip(names, zip(*batch))}

    for epoch in fluid.progress(range(options.epochs)):
        losses = [
            exe.run(feed=feed, fetch_list=[loss])[0]
            for feed in feeds(options.sentences, 1, options.batch_size)
        ]
        right = []
        for feed in feeds(200, 2, 100):
            fed = {name: feed[name] for name in ("words", "length")}
            (found,) = exe.run(translating, feed=fed, fetch_list=[best])
            for words, wanted, count in zip(found[:, :, 0], feed["wanted"], feed["count"]):
                said = np.full(count, -1)
                said[: len(words)] = words[:count]
                right.append(said == wanted[:count])
        print(
            f"epoch {epoch}  train cost {np.mean(losses):.5f}  "
            f"sentences right {np.mean([each.all() for each in right]):.5f}  "
            f"words right {np.concatenate(right).mean():.5f}"
        )
    exe.close()


if __name__ == "__main__":
    main()
