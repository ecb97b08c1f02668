"""The interface of Google Cloud Storage that obstore writes by, in front of a server that speaks S3.

Google's XML interface is that of S3, but for credentials, the header that asks for a new object, and generations. So
this translates these. What else Google does in its own way is not seen by tests.
"""

from __future__ import annotations

import http.client
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from helpers.objects.programs import HOST

_OWN: Final = ("host", "authorization", "connection", "transfer-encoding", "content-length", "date", "server")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream = 0
    authorization = ""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
        if headers.pop("x-goog-if-generation-match", None) == "0":
            headers["If-None-Match"] = "*"
        connection = http.client.HTTPConnection(HOST, self.upstream, timeout=60)
        try:
            connection.request(self.command, self.path, body, {**headers, "Authorization": self.authorization})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OWN:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.send_header("x-goog-generation", "1")
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


def serve(port: int, upstream: int, authorization: str) -> None:
    """Translates until it is killed.

    Args:
        port: Where to listen.
        upstream: Port of the server that speaks S3.
        authorization: What that server takes for a signature.
    """
    handler = type("Handler", (_Handler,), {"upstream": upstream, "authorization": authorization})
    ThreadingHTTPServer((HOST, port), handler).serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
