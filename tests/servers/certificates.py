"""Certificates for servers with TLS: ca.pem, and server and client .pem and .key, signed by it."""

import os
import subprocess


def certificates(folder):
    def run(*command):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)

    run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test authority",
        "-keyout", "ca.key", "-out", "ca.pem")
    with open(os.path.join(folder, "names"), "w", encoding="utf-8") as f:
        f.write("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("server", "client"):
        run("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key",
            "-out", f"{name}.csr")
        run("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", f"{name}.pem")
