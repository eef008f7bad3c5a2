"""Writes the zone of this pod's node to a file, for `rack_file` of the broker.

usage: zone.py LABEL FILE, with NODE_NAME and what Kubernetes tells each pod about its API server.
A node without the label has no zone: the file is empty then. An API server that does not respond is
asked again; at last the init container fails, and Kubernetes starts it again.
"""

import json
import os
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request

TRIES = int(os.environ.get("ZONE_TRIES", "10"))
ACCOUNT = os.environ.get("SERVICE_ACCOUNT_DIR", "/var/run/secrets/kubernetes.io/serviceaccount")


def labels(node: str) -> dict[str, str]:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    with open(f"{ACCOUNT}/token", encoding="ascii") as file:
        token = file.read().strip()
    request = urllib.request.Request(
        f"https://{host}:{port}/api/v1/nodes/{node}", headers={"Authorization": f"Bearer {token}"}
    )
    trusted = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    # Python 3.13 refuses what many clusters have: an authority without key identifiers.
    trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT
    with urllib.request.urlopen(request, timeout=5, context=trusted) as answer:
        found: dict[str, str] = json.load(answer)["metadata"].get("labels") or {}
    return found


def main(label: str, path: str) -> None:
    node = os.environ["NODE_NAME"]
    for left in reversed(range(TRIES)):
        try:
            zone = labels(node).get(label, "")
            break
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code}; may this service account get nodes? else set rack.from"
        except OSError as error:
            reason = str(error)
        if not left:
            sys.exit(f"error: cannot get the labels of node {node} from the API server: {reason}")
        time.sleep(2)
    with open(path, "w", encoding="utf-8") as file:
        file.write(zone)
    print(f"node {node} is in zone {zone}" if zone else f"node {node} has no label {label}")


if __name__ == "__main__":
    # The first process of a container ignores signals without a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main(*sys.argv[1:])
