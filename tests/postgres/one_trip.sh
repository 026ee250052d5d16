#!/bin/sh
# One round trip per operation: one write to the socket and one read from it, counted with strace.
#     one_trip.sh POSTGRES_OPS URL
set -eu
command -v strace >/dev/null || { echo "one_trip: strace is not installed"; exit 1; }
trace=$(mktemp)
trap 'rm -f "$trace"' EXIT
strace -f -o "$trace" -e trace=read,write,readv,writev,sendto,sendmsg,recvfrom,recvmsg "$@"
awk '
/write\(2, "MARK / {
    if (name == "end") name = ""
    if (name != "" && (sent != 1 || received != 1)) failed = 1
    if (name != "") printf "%-10s %d write, %d read\n", name, sent, received
    match($0, /MARK [a-z_]+/)
    name = substr($0, RSTART + 5, RLENGTH - 5)
    sent = received = 0
    if (name == "end") seen = 1
    next
}
/ (write|writev|sendto|sendmsg)\(/ { sent++ }
/ (read|readv|recvfrom|recvmsg)\(/ { received++ }
END { exit failed || !seen }' "$trace"
