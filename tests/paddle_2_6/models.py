"""Saves expressions of functions.txt as inference models; made models.json: Paddle 2.6.2.

    python models.py > models.json

For each operator that a file of Paddle's may have, the first expression that appends it: what is
fed, the model without the operators' places in a script, and the parameters, compressed.
"""

import ast
import base64
import json
import os
import sys
import tempfile
import zlib
from pathlib import Path

import functions


def model_of(paddle, expression, arrays, folder):
    """Return what is fed, the bytes of the model, and those of the parameters (or none)."""
    static = paddle.static
    main, startup, scope = static.Program(), static.Program(), paddle.base.Scope()
    words = [node.id for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name)]
    fed = [name for name in arrays if name in words]
    prefix = str(Path(folder) / "model")
    with (
        paddle.utils.unique_name.guard(),
        static.program_guard(main, startup),
        static.scope_guard(scope),
    ):
        names = {n: static.data(n, list(arrays[n].shape), str(arrays[n].dtype)) for n in fed}
        attr = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(0.1))
        known = {"paddle": paddle, "nn": paddle.nn, "F": paddle.nn.functional, "C": attr}
        out = eval(expression, {**known, "np": functions.np}, names)
        exe = static.Executor(paddle.CPUPlace())
        exe.run(startup)
        for suffix in (".pdmodel", ".pdiparams"):
            Path(prefix + suffix).unlink(missing_ok=True)
        static.save_inference_model(prefix, list(names.values()), [out], exe)
    parameters = Path(prefix + ".pdiparams")
    return fed, Path(prefix + ".pdmodel").read_bytes(), parameters


def without_places(data):
    """Return the model without call stacks, and the types of its operators."""
    from paddle.base.proto import framework_pb2

    program = framework_pb2.ProgramDesc()
    program.ParseFromString(data)
    types = []
    for block in program.blocks:
        for op in block.ops:
            types.append(op.type)
            kept = [a for a in op.attrs if a.name not in ("op_callstack", "op_namescope")]
            del op.attrs[:]
            op.attrs.extend(kept)
    return program.SerializeToString(), types


def packed(data):
    """Return bytes as text."""
    return base64.b64encode(zlib.compress(data, 9)).decode()


def main():
    """Print the models."""
    os.environ["FLAGS_enable_pir_api"] = "0"
    import paddle

    paddle.enable_static()
    arrays, seen, found = functions.feeds(), set(), {}
    with tempfile.TemporaryDirectory() as folder:
        for expression in functions.expressions():
            try:
                fed, data, parameters = model_of(paddle, expression, arrays, folder)
            except (RuntimeError, ValueError, TypeError, AttributeError):
                continue  # nothing of what is fed is left in the model
            model, types = without_places(data)
            if seen.issuperset(types):
                continue
            seen.update(types)
            values = packed(parameters.read_bytes()) if parameters.is_file() else ""
            found[expression] = {"feed": fed, "model": packed(model), "parameters": values}
    lines = [f"{json.dumps(line)}: {json.dumps(facts)}" for line, facts in found.items()]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
