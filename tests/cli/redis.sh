# Shared by the tests of the command on a Redis server, after lib.sh: a server that runs, at SYNCGUARD_URL.
# shellcheck shell=bash disable=SC2034,SC2317

# ask VERB...: asks tests/servers, and sets the number, the port and the process id (server) of the server.
coproc SERVERS { exec python3 "$TESTS/servers" --serve; }
keeper=$SERVERS_PID
ask() {
    local ok IFS=$'\t'
    printf '%s\n' "$*" >&"${SERVERS[1]}"
    IFS=' ' read -r ok number port server _ <&"${SERVERS[0]}"
    check "$1: the server is there" [ "$ok" = ok ] || finish
}
stop_server() { ask down "$number" 9; }
start_server() { ask redis_again "$number" "$port"; }
end_all() {
    [ "$BASHPID" = "$$" ] || return
    kill "$keeper"
    wait "$keeper" 2>/dev/null
    at_exit
}
trap end_all EXIT
ask redis
export SYNCGUARD_URL=redis://127.0.0.1:$port
