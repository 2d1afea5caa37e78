#!/usr/bin/python3
"""A web application for trying out pods: it says who it is and who asks.

    demo.py [-a HOST] [-p PORT]      or by the environment: HOST, PORT

/ greets, /hostname /livez /readyz /user-agent /configs answer what their names
say; POST /livez and /readyz with livez=FAIL or readyz=FAIL makes them fail.
"""
import argparse
import json
import os
import signal
import socket
import sys
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VERSION = "v0.1"
state = {"livez": "OK", "readyz": "OK"}


class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, text, code=200):
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        path = urllib.parse.urlparse(self.path).path
        host = socket.gethostname()
        if path == "/":
            self.answer("pod-test %s! ClientIP: %s, ServerName: %s, ServerIP: %s!\n"
                        % (VERSION, self.client_address[0], host, self.connection.getsockname()[0]))
        elif path == "/hostname":
            self.answer("ServerName: %s\n" % host)
        elif path == "/user-agent":
            self.answer("User-Agent: %s\n" % self.headers.get("User-Agent", ""))
        elif path == "/configs":
            self.answer(json.dumps({"HOST": os.getenv("HOST", ""), "PORT": os.getenv("PORT", ""), "VERSION": VERSION}) + "\n")
        elif path[1:] in state:
            value = state[path[1:]]
            self.answer(value, 200 if value == "OK" else 506)
        else:
            self.answer("not found\n", 404)

    do_HEAD = do_GET

    def do_POST(self):
        path = urllib.parse.urlparse(self.path).path
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
        name = path[1:]
        if name in state and name in form:
            state[name] = form[name][0]
            self.answer(state[name] + "\n")
        else:
            self.answer("not found\n", 404)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("-a", "--host", default=os.getenv("HOST", "0.0.0.0"))
    p.add_argument("-p", "--port", type=int, default=int(os.getenv("PORT", "80")))
    args = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(" * Running on http://%s:%d/ (Press CTRL+C to quit)" % (args.host, args.port), flush=True)
    ThreadingHTTPServer((args.host, args.port), App).serve_forever()


main()
