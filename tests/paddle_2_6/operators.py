"""Prints the operators of Paddle 2.6.2, each with the types of its attributes; made operators.txt.

python operators.py > operators.txt

Types are numbers of the field ``type`` in files of models. Of gradients, updates and what only
collective training has nothing is printed.
"""

LEFT_OUT = (
    "_grad",
    "c_",
    "fused_",
    "distributed_",
    "pull_",
    "push_",
)
OF_ALL = ("op_", "with_quant_attr", "use_mkldnn", "use_cudnn", "mkldnn_data_type")


def main():
    """Print the lines."""
    from paddle.base.framework import get_all_op_protos

    for op in sorted(get_all_op_protos(), key=lambda op: op.type):
        if not any(op.type.startswith(w) or op.type.endswith(w) for w in LEFT_OUT):
            attrs = {a.name: int(a.type) for a in op.attrs if not a.name.startswith(OF_ALL)}
            print(op.type, *(f"{name}={kind}" for name, kind in sorted(attrs.items())))


if __name__ == "__main__":
    main()
