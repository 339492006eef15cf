"""Functions of one value or two, element by element: activations, arithmetic, comparisons."""
