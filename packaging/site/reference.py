"""Makes the pages of the reference from docstrings: every public name of the public modules.

Modules are imported, since many layers are made from declarations; the signatures are those that
scripts see. `hpcdist.torch` is parsed instead where torch is not installed. Needs only hpcdist.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hpcdist

PACKAGE = Path(hpcdist.__file__).parent
# Page -> module, and how scripts call it.
MODULES = {
    "hpcdist": ("hpcdist", "fluid"),
    "layers": ("hpcdist.layers", "fluid.layers"),
    "optimizer": ("hpcdist.optimizer", "fluid.optimizer"),
    "io": ("hpcdist.io", "fluid.io"),
    "data": ("hpcdist.data", "hpcdist.data"),
    "checkpoint": ("hpcdist.checkpoint", "hpcdist.checkpoint"),
    "online": ("hpcdist.online", "online"),
    "fleet": ("hpcdist.fleet", "hpcdist.fleet"),
    "transpiler": ("hpcdist.transpiler", "hpcdist.transpiler"),
    "ps": ("hpcdist.ps", "hpcdist.ps"),
    "serving": ("hpcdist.serving", "hpcdist.serving"),
    "torch": ("hpcdist.torch", "hpcdist.torch"),
}
# What a function says that only imports and calls another one: where that is, before its example.
FORWARDS = re.compile(r"see `(hpcdist[\w.]*)\.(\w+)`\.")
EXAMPLE_ONLY = re.compile(r"\A.*?(?=^ *Examples?:|\Z)", re.M | re.S)
EXAMPLES = re.compile(r"^ *Examples?:\n((?:\n| .*\n?)+)", re.M)


def pages() -> dict[str, str]:
    """Return page name -> Markdown, with an index of all names."""
    made = {page: _page(page, *names) for page, names in MODULES.items()}
    counts = {page: len(re.findall("^## ", text, re.M)) for page, text in made.items()}
    rows = [f"| [`{MODULES[p][0]}`]({p}.md) | {counts[p]} |" for p in MODULES]
    table = "\n".join(["| module | names |", "|---|---|", *rows])
    made["index"] = (
        "# Reference\n\nMade from the docstrings. `import hpcdist as fluid` is how scripts import "
        f"it.\n\n{table}\n"
    )
    return made


def _page(page: str, module: str, called: str) -> str:
    head = f"# {module}\n\n"
    if module == "hpcdist.torch" and importlib.util.find_spec("torch") is None:
        return head + "".join(_parsed(PACKAGE / "torch", called))
    found = importlib.import_module(module)
    if found.__doc__:
        head += _text(found.__doc__)
    listed = [*getattr(found, "__all__", [])]
    parts = [_entry(f"{called}.{name}", getattr(found, name)) for name in sorted(set(listed))]
    return head + "".join(part for part in parts if part)


def _entry(name: str, found: Any) -> str:
    if inspect.ismodule(found) or not callable(found):
        return ""
    if (node := _meant(found)) is not None:  # what is imported only where its package is installed
        return _of_node(name, node) + _text(EXAMPLE_ONLY.sub("\n", _own_doc(found)))
    heading = f"## {name} {{ #{name} data-toc-label='{name.rpartition('.')[2]}' }}\n\n"
    text = heading + _code(name, found) + _text(_own_doc(found))
    if inspect.isclass(found):
        for method, function in _methods(found):
            text += f"### `{method}` {{ #{name}.{method} }}\n\n{_code(method, function)}"
            text += _text(_own_doc(function))
    return text


def _meant(found: Any) -> ast.FunctionDef | None:
    """Return the function that another one only forwards to, by its docstring, or None."""
    match = FORWARDS.search(_own_doc(found).partition("\n")[0])
    if match is None or [*inspect.signature(found).parameters] != ["args", "kwargs"]:
        return None
    path = PACKAGE.parent / (match[1].replace(".", "/") + ".py")
    body = ast.parse(path.read_text("utf-8")).body
    return next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == match[2])


def _own_doc(found: Any) -> str:
    """Return an object's docstring, not that of `type` or `object`."""
    doc = inspect.getdoc(found) or ""
    return "" if doc in (inspect.getdoc(object), inspect.getdoc(type)) else doc


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    for name, value in inspect.getmembers(cls, inspect.isroutine):
        if not name.startswith("_") and (getattr(value, "__module__", "") or "").startswith("hpcd"):
            yield name, value


def _code(name: str, found: Any) -> str:
    try:
        signature = inspect.signature(found)
    except (ValueError, TypeError):  # without one: Enums, C functions
        return ""
    shown = []
    for parameter in signature.parameters.values():
        if parameter.name != "self":
            text = str(parameter.replace(annotation=parameter.empty)).replace("=", " = ", 1)
            note = parameter.annotation
            if isinstance(note, str):
                text = f"{parameter.name}: {note}{text.lstrip('*')[len(parameter.name) :]}"
                text = "*" * (parameter.kind is parameter.VAR_POSITIONAL) + text
                text = "**" * (parameter.kind is parameter.VAR_KEYWORD) + text
            shown.append(re.sub(r"<([\w.]+)[^<>]* at 0x[0-9a-f]+>", r"\1", text))
    note = signature.return_annotation
    result = f" -> {note}" if isinstance(note, str) and note != "None" else ""
    line = f"{name}({', '.join(shown)}){result}"
    if len(line) > 90:
        line = f"{name}(\n" + "".join(f"    {text},\n" for text in shown) + f"){result}"
    return f"```python\n{line}\n```\n\n"


def _text(doc: str) -> str:
    """Return a docstring as Markdown."""

    def block(match: re.Match[str]) -> str:
        code = textwrap.dedent(match[1]).strip("\n")
        return f"**Example**\n\n```pycon\n{code}\n```\n\n"

    doc = inspect.cleandoc(doc) + "\n"
    doc = re.sub(r"(?<!`)`(?:[\w.]*\.)?(\w+)`(?!`)", r"`\1`", doc)
    doc = re.sub(r"(?<!`)``(?!`)", "`", doc)
    doc = EXAMPLES.sub(block, doc)
    return doc.strip() + "\n\n"


def _parsed(package: Path, called: str) -> Iterator[str]:
    """Yield the entries of a package whose imports are not installed."""
    tree = ast.parse((package / "__init__.py").read_text("utf-8"))
    yield _text(ast.get_docstring(tree) or "")
    sources = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    (names,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    ]
    for name in names:
        path = PACKAGE.parent / (sources[name].replace(".", "/") + ".py")
        for node in ast.parse(path.read_text("utf-8")).body:
            if getattr(node, "name", "") == name:
                yield _of_node(f"{called}.{name}", node)


def _of_node(name: str, node: Any) -> str:
    init = [n for n in getattr(node, "body", []) if getattr(n, "name", "") == "__init__"]
    function = node if isinstance(node, ast.FunctionDef) else init[0] if init else None
    arguments = "" if function is None else ast.unparse(function.args).removeprefix("self, ")
    text = f"## {name} {{ #{name} data-toc-label='{name.rpartition('.')[2]}' }}\n\n"
    text += f"```python\n{name}({arguments.removeprefix('self')})\n```\n\n"
    text += _text(ast.get_docstring(node) or "")
    for method in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
            shown = ast.unparse(method.args).removeprefix("self, ").removeprefix("self")
            text += f"### `{method.name}` {{ #{name}.{method.name} }}\n\n"
            text += f"```python\n{method.name}({shown})\n```\n\n"
            text += _text(ast.get_docstring(method) or "")
    return text
