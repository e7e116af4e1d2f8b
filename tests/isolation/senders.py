"""Ways to send data: a script for `foretell run`. Prints `sent NAME` or `not sent NAME: REASON`.

    senders.py PORT SOCKET      PORT of a server on the machine's loopback, TCP and UDP; SOCKET its Unix socket
"""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable

PORT, UNIX = (int(sys.argv[1]), sys.argv[2]) if __name__ == "__main__" else (0, "")
SENT = b"the user's secret"


def by_urllib() -> None:
    urllib.request.urlopen(f"http://127.0.0.1:{PORT}/urllib", data=SENT, timeout=600).read()


def by_http_client() -> None:
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    connection.request("POST", "/http.client", body=SENT)
    connection.getresponse().read()


def by_socket() -> None:
    with socket.create_connection(("127.0.0.1", PORT), timeout=600) as connection:
        connection.sendall(b"POST /socket HTTP/1.0\r\n\r\n" + SENT)
        connection.recv(100)


def by_udp() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.connect(("127.0.0.1", PORT))
        connection.send(b"/udp" + SENT)


def by_unix_socket() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(UNIX)
        connection.sendall(b"POST /unix HTTP/1.0\r\n\r\n" + SENT)
        connection.recv(100)


def by_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{UNIX}")
        connection.sendall(b"POST /abstract HTTP/1.0\r\n\r\n" + SENT)
        connection.recv(100)


def by_curl() -> None:
    curl = shutil.which("curl") or "curl"
    subprocess.run([curl, "-sf", "-m", "20", "-d", SENT, f"http://127.0.0.1:{PORT}/curl"], check=True)


SENDERS: tuple[Callable[[], None], ...] = (
    by_urllib, by_http_client, by_socket, by_udp, by_unix_socket, by_abstract_socket, by_curl,
)  # fmt: skip

if __name__ == "__main__":
    for sender in SENDERS:
        try:
            sender()
            print(f"sent {sender.__name__}", flush=True)
        except Exception as error:
            print(f"not sent {sender.__name__}: {type(error).__name__}", flush=True)
