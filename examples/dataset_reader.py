"""The pipe command of fleet_dataset.py: lines of clicks to multi-slot text.

    echo '1 0.25 0.5 17 4 8' | python examples/dataset_reader.py

A line holds whether it was clicked, two numbers, and the ids of any number of words.
"""

import paddle.fluid.incubate.data_generator as dg


class Clicks(dg.MultiSlotDataGenerator):
    """One sample a line."""

    def generate_sample(self, line):
        """Return a function that yields the slots of a line."""

        def samples():
            fields = line.split()
            yield [
                ("words", [int(word) for word in fields[3:]] or [0]),
                ("numbers", [float(number) for number in fields[1:3]]),
                ("click", [int(fields[0])]),
            ]

        return samples


if __name__ == "__main__":
    Clicks().run_from_stdin()
