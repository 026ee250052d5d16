"""A fake server with Firestore's REST interface that can misbehave on demand.

    python3 fake_firestore.py [--port NUMBER] [--cert FILE --key FILE [--alpn NAME]]

Keeps documents in memory, with the preconditions and times of the real one, and
plays token endpoint (/token) and metadata server as well. Prints its port. Under
/_/ tests store documents, set rules for the next requests and read the requests so far:

    PUT  /_/documents   {name: {field: value}}; null deletes
    GET  /_/documents   the same, with updateTime
    PUT  /_/rules       [{on, skip, times, do, ...}]: the first match applies
    PUT  /_/settings    read_time_ms, date_ms (offsets; null: tell none), lifetime_s,
                        standstill_ms (the next commit adds it to read_time_ms),
                        permissions (those of the caller; null: all),
                        indexes (those that explain names; null: it does not explain)
    GET  /_/log         [{call, authorization, body, connection, permissions}]; DELETE empties it
"""
import argparse
import datetime
import email.utils
import http.server
import json
import socket
import ssl
import struct
import threading
import time
import urllib.parse

lock = threading.Lock()
documents = {}
rules = []
log = []
settings = {"read_time_ms": 0, "date_ms": None, "lifetime_s": 3600, "standstill_ms": 0, "permissions": None,
            "indexes": ["lockId"]}
tokens = 0
last_stamp = 0


def text_of(micros):
    moment = datetime.datetime.fromtimestamp(0, datetime.timezone.utc) + \
        datetime.timedelta(microseconds=micros)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def now_text():
    return text_of(time.time_ns() // 1000 + settings["read_time_ms"] * 1000)



def new_stamp():
    """Times of changes never repeat."""
    global last_stamp
    last_stamp = max(last_stamp + 1, time.time_ns() // 1000)
    return text_of(last_stamp)


class Refused(Exception):
    def __init__(self, http, status):
        super().__init__(status)
        self.http, self.status = http, status


def check(write):
    name = write.get("delete") or write["update"]["name"]
    condition = write.get("currentDocument", {})
    found = documents.get(name)
    if condition.get("exists") is False and found:
        raise Refused(409, "ALREADY_EXISTS")
    if condition.get("exists") is True and not found:
        raise Refused(404, "NOT_FOUND")
    if "updateTime" in condition and (not found or found["updateTime"] != condition["updateTime"]):
        raise Refused(400, "FAILED_PRECONDITION")


def apply(write, stamp):
    if "delete" in write:
        documents.pop(write["delete"], None)
        return {}
    name = write["update"]["name"]
    fields = write["update"].get("fields", {})
    if "updateMask" in write and name in documents:
        merged = dict(documents[name]["fields"])
        for path in write["updateMask"]["fieldPaths"]:
            merged[path] = fields[path]
        fields = merged
    documents[name] = {"name": name, "fields": fields, "createTime": stamp, "updateTime": stamp}
    return {"updateTime": stamp}


def do_commit(body):
    for write in body["writes"]:
        check(write)
    stamp = new_stamp()
    settings["read_time_ms"] += settings["standstill_ms"]
    settings["standstill_ms"] = 0
    return {"writeResults": [apply(write, stamp) for write in body["writes"]],
            "commitTime": now_text()}


def do_batch_write(body):
    results, states = [], []
    names = [write.get("delete") or write["update"]["name"] for write in body["writes"]]
    if len(set(names)) < len(names):
        raise Refused(400, "INVALID_ARGUMENT")
    for write in body["writes"]:
        try:
            check(write)
            results.append(apply(write, new_stamp()))
            states.append({})
        except Refused:
            results.append({})
            states.append({"code": 9, "message": "no"})
    return {"writeResults": results, "status": states}


def do_batch_get(body):
    answer = []
    # Backwards: the order of answers is not promised.
    for name in reversed(body["documents"]):
        item = {"found": documents[name]} if name in documents else {"missing": name}
        answer.append(dict(item, readTime=now_text()))
    return answer


def explain(query):
    """The real server's reply to a query that it only plans. Empty lists are left out."""
    if settings["indexes"] is None:
        raise Refused(400, "INVALID_ARGUMENT")
    field = query["where"]["fieldFilter"]["field"]["fieldPath"]
    used = [{"query_scope": "Collection", "properties": "(%s ASC, __name__ ASC)" % field}
            for name in settings["indexes"] if name == field]
    plan = {"indexesUsed": used} if used else {}
    return [{"readTime": now_text(), "explainMetrics": {"planSummary": plan}}]


def do_query(body):
    query = body["structuredQuery"]
    if "explainOptions" in body:
        return explain(query)
    if query["from"][0].get("allDescendants"):
        # Everything below one collection, whose name the lower bound begins with.
        least = query["where"]["compositeFilter"]["filters"][0]["fieldFilter"]["value"]
        base = least["referenceValue"].rpartition("/")[0] + "/"
        found = [d for n, d in sorted(documents.items()) if n.startswith(base)]
    else:
        collection = query["from"][0]["collectionId"]
        found = [d for n, d in sorted(documents.items()) if n.split("/")[-2] == collection]
    if "fieldFilter" in query.get("where", {}):
        filters = query["where"]["fieldFilter"]
        found = [d for d in found
                 if d["fields"].get(filters["field"]["fieldPath"]) == filters["value"]]
    if "startAt" in query:
        after = query["startAt"]["values"][0]["referenceValue"]
        found = [d for d in found if d["name"] > after]
    found = found[:query.get("limit", len(found))]
    return [{"document": d, "readTime": now_text()} for d in found] or [{"readTime": now_text()}]


CALLS = {"commit": do_commit, "batchWrite": do_batch_write, "batchGet": do_batch_get,
         "runQuery": do_query}
# The permissions that Google documents for each request: https://cloud.google.com/firestore/docs/security/iam
NEEDS = {"batchGet": ["datastore.entities.get"],
         "runQuery": ["datastore.entities.get", "datastore.entities.list"],
         "listCollectionIds": ["datastore.entities.list"],
         "beginTransaction": ["datastore.databases.get"], "rollback": ["datastore.databases.get"],
         "token": [], "metadata": []}


def needs_of_write(call, write):
    condition = write.get("currentDocument", {})
    if "delete" in write:
        return ["datastore.entities.delete"]
    if condition.get("exists") is False:
        return ["datastore.entities.create"]
    if condition and call == "commit":  # one with an updateTime must exist, too
        return ["datastore.entities.update"]
    return ["datastore.entities.create", "datastore.entities.update"]


def needs(call, body):
    found = set(NEEDS.get(call, [] if call in CALLS else ["an unknown permission"]))
    if isinstance(body, dict):
        for write in body.get("writes", []):
            found.update(needs_of_write(call, write))
        if "transaction" in body or "newTransaction" in body:
            found.add("datastore.databases.get")
    return sorted(found)


def find_rule(call):
    for rule in rules:
        if rule["on"] != call or rule.get("times", 1) == 0:
            continue
        if rule.get("skip", 0) > 0:
            rule["skip"] -= 1
            continue
        rule["times"] = rule.get("times", 1) - 1
        return dict(rule)
    return {"do": "serve"}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_):
        pass

    def date_time_string(self, timestamp=None):
        return email.utils.formatdate(time.time() + (settings["date_ms"] or 0) / 1000, usegmt=True)

    def send_response(self, code, message=None):
        self.send_response_only(code, message)
        if settings["date_ms"] is not None:
            self.send_header("Date", self.date_time_string())

    def send_error(self, code, message=None, explain=None):
        """Logs a client that begins HTTP/2, which this server does not speak."""
        if self.requestline.startswith("PRI * HTTP/2"):
            with lock:
                log.append({"call": "http2"})
        self.close_connection = True

    def reset(self):
        """Ends the connection without an answer, as a crash would."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def reply(self, http, value, rule):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        kind = rule["do"]
        if kind == "oversize":
            body = b'[{"pad":"' + b"x" * (9 << 20) + b'"}]'
        self.send_response(http)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if kind == "truncate":
            self.wfile.write(body[:len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
        elif kind == "slow":
            for at in range(len(body)):
                self.wfile.write(body[at:at + 1])
                self.wfile.flush()
                time.sleep(rule["ms"] / 1000)
        else:
            self.wfile.write(body)
            self.wfile.flush()

    def refuse(self, http, status, rule):
        error = {"error": {"code": http, "status": status,
                           "message": "text with PERMISSION_DENIED in it"}}
        if rule.get("plain"):
            error = b"<html>no</html>"
        self.reply(http, [error] if rule.get("array") else error, {"do": "refuse"})

    def call_of(self):
        path = urllib.parse.urlsplit(self.path).path
        if path == "/token":
            return "token"
        if path.startswith("/computeMetadata/"):
            return "metadata"
        return path.rpartition(":")[2]

    def serve(self, call, body):
        global tokens
        with lock:
            if call in ("token", "metadata"):
                tokens += 1
                return {"access_token": f"fake_server-token-{tokens}", "token_type": "Bearer",
                        "expires_in": settings["lifetime_s"]}
            if settings["permissions"] is not None and not set(needs(call, body)) <= set(settings["permissions"]):
                raise Refused(403, "PERMISSION_DENIED")
            return CALLS[call](body)

    def handle_call(self, raw):
        call = self.call_of()
        body = json.loads(raw) if raw and call in CALLS else raw.decode()
        with lock:
            log.append({"call": call, "authorization": self.headers.get("Authorization"),
                        "flavor": self.headers.get("Metadata-Flavor"), "body": body,
                        "connection": self.client_address[1], "permissions": needs(call, body)})
            rule = find_rule(call)
        kind = rule["do"]
        if kind == "reset_before":
            return self.reset()
        if kind == "hang":
            time.sleep(rule.get("ms", 600000) / 1000)
            return self.reset()
        if kind == "delay":
            time.sleep(rule["ms"] / 1000)
        if kind == "status":
            return self.refuse(rule["http"], rule["status"], rule)
        if kind == "body":
            return self.reply(rule.get("http", 200), rule["body"].encode(), rule)
        try:
            answer = self.serve(call, body)
        except Refused as no:
            return self.refuse(no.http, no.status, rule)
        except (KeyError, ValueError):
            return self.refuse(400, "INVALID_ARGUMENT", rule)
        if kind == "damage_fence":
            documents[body["writes"][0]["update"]["name"]]["fields"]["fence"] = {"nullValue": None}
        if kind in ("reset_after", "damage_fence"):
            return self.reset()
        if kind == "hang_after":
            time.sleep(rule.get("ms", 600000) / 1000)
            return self.reset()
        if kind == "status_after":
            return self.refuse(rule["http"], rule["status"], rule)
        return self.reply(200, answer, rule)

    def control(self, raw):
        global rules
        what = self.path[3:]
        with lock:
            answer = {}
            if what == "log":
                answer = list(log)
                if self.command == "DELETE":
                    log.clear()
            elif what == "rules":
                rules = json.loads(raw)
            elif what == "settings":
                settings.update(json.loads(raw))
            elif what == "documents" and raw:
                for name, fields in json.loads(raw).items():
                    if fields is None:
                        documents.pop(name, None)
                    else:
                        stamp = new_stamp()
                        documents[name] = {"name": name, "fields": fields, "createTime": stamp,
                                           "updateTime": stamp}
            elif what == "documents":
                answer = dict(documents)
        self.reply(200, answer, {"do": "serve"})

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith("/_/"):
            return self.control(raw)
        return self.handle_call(raw)

    def do_CONNECT(self):
        """Acts as a proxy that refuses all connections."""
        with lock:
            log.append({"call": "CONNECT"})
            rule = find_rule("CONNECT")
        self.send_response(rule.get("http", 403))
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_PUT = do_DELETE = do_POST


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        pass


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, default=0)
    arguments.add_argument("--cert")
    arguments.add_argument("--key")
    arguments.add_argument("--alpn", default="http/1.1")
    given = arguments.parse_args()
    server = Server(("127.0.0.1", given.port), Handler)
    if given.cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(given.cert, given.key)
        context.set_alpn_protocols(given.alpn.split(","))
        server.socket = context.wrap_socket(server.socket, server_side=True,
                                            do_handshake_on_connect=False)
    print(server.server_address[1], flush=True)
    server.serve_forever()


main()
