#!/bin/bash
# Messages name the key, the holder and the host of the store; never a password.
# shellcheck disable=SC2016 # the child expands it
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"

exits "acquire" 0 acquire --ttl 5m --owner 'deploy@web1:311' busy
exits "a wait that timed out" 75 run -w 200ms busy -- true
check "key, holder, remaining time" grep -Eqx \
    "syncguard: gave up on 'busy' after [0-9.]+m?s: held by deploy@web1:311, expires in 4m[0-9]+s" err
exits "-E: the caller expects it" 3 run -w 200ms -E 3 busy -- true
same "and is told by the exit code" "" "$err"
exits "-E -v" 3 run -v -w 200ms -E 3 busy -- true
check "but with -v also here" contains "$err" "gave up on 'busy'"
check "and who is waited for" grep -Eq "waiting for 'busy': held by deploy@web1:311 for [0-9.]+m?s, lease" err
exits "-v" 0 run -v free -- true
check "durations in one form" grep -Eq 'acquired after [0-9.]+m?s, fence' err
exits "-n: who holds it" 1 run -n busy -- true
check "once" grep -Eqx "syncguard: 'busy' is held by deploy@web1:311, expires in [0-9]m[0-9]+s" err
exits "acquire -n" 1 acquire -n busy
check "too" contains "$err" "held by deploy@web1:311"
for command in "run -n -q busy -- true" "run -n -E 1 busy -- true" "acquire -n -q busy" "acquire -n -E 1 busy"; do
    # shellcheck disable=SC2086 # words
    exits "$command" 1 $command
    same "$command: silent" "" "$err"
done
exits "a wait of some seconds" 75 run -w 4s busy -- true
check "says so meanwhile" grep -Eq \
    "^syncguard: waiting for 'busy' \([0-9.]+s so far\): held by deploy@web1:311 for .*, lease ends in [0-9]m" err
exits "-q" 75 run -q -w 4s busy -- true
check "does not" lacks "$err" "waiting for"
exits "-E" 3 run -E 3 -w 4s busy -- true
same "does not either" "" "$err"
exits "free it" 0 release --key busy --force

# Several keys, and a holder with our own --owner: of two such keys, the command waits for the last one.
exits "the same label" 0 acquire --ttl 5m --owner ci same
held_by_ci="'same' is held by ci, expires in [0-9]m[0-9]+s"
for keys in "-k same -k z" "-k a -k same" "-k z -k same"; do
    # shellcheck disable=SC2086 # words
    exits "$keys" 1 run -n --owner ci $keys -- true
    check "$keys: who holds it" grep -Eqx "syncguard: $held_by_ci" err
done
# While we hold a.
exits "a wait" 75 run -w 4s --owner ci -k a -k same -- true
check "says so meanwhile" grep -Eq "^syncguard: waiting for 'same' \([0-9.]+s so far\): held by ci for" err
check "and at the end" grep -Eq "^syncguard: gave up on 'same' after .*: held by ci, expires in [0-9]m" err
exits "another label" 0 acquire --ttl 5m --owner deploy z
exits "both" 1 run -n --owner ci -k same -k z -- true
check "one that is held" grep -Eqx "syncguard: 'z' is held by deploy, expires in [0-9]m[0-9]+s" err
exits "free it" 0 release --key same --force
exits "free it" 0 release --key z --force
# A key of ours that --min-hold keeps is not reported as held by a next holder.
"$SG" run --ttl 3s --min-hold 1m --owner ci -k a -k b -- sh -c 'echo up >up2; exec sleep 60' 2>lost_err &
runner=$!
check "up" until_true 20 test -s up2
"$SG" release --key b --force 2>/dev/null
wait $runner
same "lost" 76 $?
check "not ours" lacks "$(cat lost_err)" "is now held"
# A lock with our own default label that was acquired while we waited is a grant of ours that the store has not
# confirmed. (Here the test creates it, before the command gets its URL.) A lock with a longer lease was renewed, and an
# older lock belongs to another holder, too.
"$SG" run -q own -- "$SG" list --json own >listed
label=$(sed 's/.*"owner":"\([^"]*\):[0-9]*".*/\1/' listed)
mkfifo url
# plant TTL: sets err
plant() {
    rm -f pid
    # shellcheck disable=SC2016 # for the inner shell
    sh -c 'echo $$ >pid; exec "$1" run -b @url -w 5s own -- true' sh "$SG" 2>err &
    runner=$!
    exec 9>url # once it waits for its URL
    exits "a grant" 0 acquire -q --ttl "$1" --owner "$label:$(cat pid)" own
    echo "$SYNCGUARD_URL" >&9
    exec 9>&-
    wait $runner
    same "a wait for our label" 75 $?
    err=$(cat err)
    "$SG" release --key own --force 2>/dev/null
}
plant 30s
check "we are no holder" lacks "$err" "held by $label"
plant 50s
check "it is held" contains "$err" "held by $label:$(cat pid) for"
check "at the end, too" contains "$err" "held by $label:$(cat pid), expires in"
# shellcheck disable=SC2016 # for the inner shell
sh -c '"$2" acquire -q --ttl 30s --owner "$1:$$" own && exec "$2" run -n own -- true' sh "$label" "$SG" >/dev/null 2>err
same "an older one" 1 $?
check "it is held" contains "$(cat err)" "'own' is held by $label"
exits "free it" 0 release --key own --force

# A lost lock: the message names it and its new holder.
"$SG" run --ttl 3s taken -- sh -c 'echo up >up; exec sleep 60' 2>lost_err &
runner=$!
check "up" until_true 20 test -s up
"$SG" release --key taken --force 2>/dev/null
exits "the next" 0 acquire --ttl 5m --owner next@host:1 taken
wait $runner
same "lost" 76 $?
check "which lock" grep -q "the lock 'taken' is lost: the store no longer has it" lost_err
check "who holds it now" grep -q "'taken' is now held by next@host:1, expires in" lost_err

# The host, without user and password. (Port 1 is closed.)
if [ -e "$(dirname "$SG")/libsyncguard-redis.so.0" ]; then
    exits "refused" 69 status -b redis://user:pw-marker-2@127.0.0.1:1/0 k
    check "host and reason" contains "$err" 'redis://127.0.0.1:1/0: connect: connection refused'
    check "no user" lacks "$err" user
    check "no password" lacks "$err" pw-marker-2
    exits "-w" 69 run -w 100ms -b redis://user:pw-marker-2@127.0.0.1:1 k -- true
    check "host" contains "$err" 'redis://127.0.0.1:1: '
    check "no password" lacks "$err" pw-marker-2
    # TLS to a port without TLS, which answers with a line or not at all, and the other way round.
    python3 -c 'import socket, threading
ports = []
def serve(answer):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(20)
    ports.append(listener.getsockname()[1])
    def loop():
        kept = []
        while True:
            client = listener.accept()[0]
            kept.append(client)
            if answer is not None:
                client.recv(1000)
                client.sendall(answer)
                client.close()
    threading.Thread(target=loop).start()
serve(b"-ERR unknown command\r\n")
serve(None)
serve(b"")
print(*ports, flush=True)' >ports &
    servers=$!
    until_true 20 test -s ports
    read -r talking silent closing <ports
    exits "a plain port that answers" 69 status -b "rediss://127.0.0.1:$talking" k
    check "says so" contains "$err" "answers without TLS"
    exits "a plain port that waits" 69 status -b "rediss://127.0.0.1:$silent?timeout_ms=1000" k
    check "asks" contains "$err" "if its port speaks no TLS, use redis://"
    exits "a port that hangs up" 69 status -b "redis://127.0.0.1:$closing" k
    check "asks" contains "$err" "if its port speaks TLS, use rediss://"
    kill -9 $servers
    wait $servers 2>/dev/null
    # An unescaped question mark or an @ in an option: the host cannot be told from the password.
    run_sg status -v -b 'redis://127.0.0.1:1?password=hun@ter2' k
    check "no part of the password" lacks "$err" ter2
fi
if [ -e "$(dirname "$SG")/libsyncguard-postgres.so.0" ]; then
    exits "refused" 69 status -b postgres://user:pw-marker-2@127.0.0.1:1/db k
    check "host" contains "$err" 'postgres://127.0.0.1:1/db: '
    check "no password" lacks "$err" pw-marker-2
    exits "setup" 69 setup -b postgres://user:pw-marker-2@127.0.0.1:1/db
    check "host" contains "$err" 'postgres://127.0.0.1:1/db: '
    check "no password" lacks "$err" pw-marker-2
    # A file that the connection needs is missing: the message names the option and its source. Nothing is sent.
    roots="postgres://127.0.0.1:1/db?sslmode=verify-full&sslrootcert=$WORK"
    SYNCGUARD_URL=$roots/none exits "no sslrootcert" 64 run -w 1s k -- true
    check "names both" contains "$err" \
        "the file given by option sslrootcert cannot be read: No such file or directory (in the URL from SYNCGUARD_URL;"
    mkfifo pipe
    exits "a pipe for sslrootcert" 64 run -n -b "$roots/pipe" k -- true
    check "says why" contains "$err" "the file given by option sslrootcert cannot be read: it is not a regular file"
    PGSSLROOTCERT=$WORK/none exits "in the environment" 64 status -b "postgres://db.example/db" k
    check "names the variable" contains "$err" "the file given by PGSSLROOTCERT cannot be read: No such file or directory"
    # libpq does not read the file if nothing is verified, or without TLS.
    exits "not verified" 69 status -b "postgres://127.0.0.1:1/db?sslmode=require&sslrootcert=$WORK/none" k
    exits "a socket" 69 status -b "postgres:///db?host=$WORK&sslmode=verify-full&sslrootcert=$WORK/none" k
fi

exits "an unknown scheme" 64 status -b mysql://host k
for scheme in sqlite: redis:// rediss:// postgres:// firestore:// memory:; do
    check "lists $scheme" contains "$err" $scheme
done

# A module of another version is not reported as a fault of the store's file, whatever the owner of the file.
if [ -e "$(dirname "$SG")/libsyncguard-sqlite.so.0" ]; then
    mkdir older
    cp "$SG" "$(dirname "$SG")/libsyncguard.so.0" older
    sed 's/SYNCGUARD_SYS_[0-9]/SYNCGUARD_SYS_x/g' "$(dirname "$SG")/libsyncguard-sqlite.so.0" \
        >older/libsyncguard-sqlite.so.0
    touch owned.db
    [ "$(id -u)" != 0 ] || chown nobody owned.db
    SG=$WORK/older/$(basename "$SG") exits "another version" 64 run -n -b "sqlite:$WORK/owned.db" k -- true
    check "which module" contains "$err" "older/libsyncguard-sqlite.so.0 was built for another version of the library"
    check "where the URL is from" contains "$err" "in the URL from -b;"
    check "not another user's file" lacks "$err" "sudo"
fi

# Reasons are words, not numbers. A file in place of a folder is refused for root, too.
touch file
exits "not a folder" 64 run -b "sqlite:$WORK/file/locks.db" k -- true
check "says why" contains "$err" "Not a directory"
check "no number" lacks "$err" errno
finish
