#!/bin/sh
# Installs missing packages on Debian or Ubuntu, after printing their names.
#
#     install-deps.sh [--check] GROUP...      groups: build, test, check, docs, peers, redis, python, deb, deb-test;
#                                             parts of build: core and for each store, e.g. lib-sqlite
#
# Each package is probed by what it provides (a command, a pkg-config module, a
# file), so software that was installed in another way counts too. If nothing is
# missing, nothing is printed and nothing is done. --check only reports, and
# fails if something is missing. Services of newly installed packages are neither
# started nor enabled; those that were there before are not touched.
set -eu

emulator_files='/usr/lib/google-cloud-sdk/platform/cloud-firestore-emulator/*'

# needs GROUP: lines of "probe package"; a "?" before the package marks one that is
# installed only where apt knows it.
needs() {
    case $1 in
    build)
        for part in core lib-sqlite lib-redis lib-postgres lib-firestore; do
            needs $part
        done
        ;;
    core)
        cat <<'LIST'
cmd:gcc gcc
file:/usr/include/errno.h libc6-dev
cmd:cmake cmake
cmd:ninja ?ninja-build
cmd:pkg-config pkg-config
pc:libutf8proc libutf8proc-dev
pc:libmd libmd-dev
LIST
        ;;
    lib-sqlite) echo pc:sqlite3 libsqlite3-dev ;;
    lib-redis) printf '%s\n' 'pc:hiredis libhiredis-dev' 'pc:openssl libssl-dev' ;;
    lib-postgres) echo pc:libpq libpq-dev ;;
    lib-firestore)
        cat <<'LIST'
pc:libcurl libcurl4-openssl-dev
pc:jansson libjansson-dev
pc:openssl libssl-dev
LIST
        ;;
    deb)
        cat <<'LIST'
file:/usr/share/build-essential/essential-packages-list build-essential
cmd:dh debhelper
cmd:dh_python3 dh-python
cmd:/usr/bin/python3 python3
cmd:dpkg-buildpackage dpkg-dev
LIST
        ;;
    deb-test) printf '%s\n' 'cmd:lintian lintian' 'cmd:mmdebstrap mmdebstrap' ;;
    python)
        cat <<'LIST'
cmd:/usr/bin/python3 python3
file:/usr/lib/python3/dist-packages/setuptools python3-setuptools
file:/usr/lib/python3/dist-packages/wheel python3-wheel
LIST
        ;;
    test)
        needs python
        cat <<'LIST'
cmd:g++ g++
pc:cmocka libcmocka-dev
pc:libuv libuv1-dev
cmd:redis-server redis-server
cmd:redis-cli redis-tools
file:/usr/lib/postgresql/*/bin/initdb postgresql
file:/usr/sbin/pgbouncer pgbouncer
cmd:faketime faketime
cmd:strace strace
cmd:expect expect
cmd:tmux tmux
cmd:python3 python3
file:/usr/lib/python3/dist-packages/yaml python3-yaml
cmd:spin spin
cmd:openssl openssl
cmd:ps procps
cmd:flock util-linux
cmd:mandoc mandoc
cmd:hyperfine hyperfine
cmd:zsh zsh
cmd:fish fish
cmd:promtool ?prometheus
cmd:java ?default-jre-headless
EMULATOR ?google-cloud-cli-firestore-emulator
LIST
        ;;
    redis)
        cat <<'LIST'
cmd:redis-server redis-server
LIST
        ;;
    peers)
        cat <<'LIST'
cmd:node nodejs
cmd:npm npm
file:/usr/lib/python3/dist-packages/redis python3-redis
LIST
        ;;
    check)
        cat <<'LIST'
cmd:clang-format clang-format
cmd:clang-tidy clang-tidy
cmd:valgrind valgrind
cmd:shellcheck shellcheck
cmd:mypy mypy
LIST
        needs docs
        ;;
    docs) echo cmd:doxygen doxygen ;;
    *)
        echo "install-deps: unknown group '$1' (they are at the head of this file)" >&2
        exit 64
        ;;
    esac
}

# Whether apt could install the package.
available() {
    candidate=$(apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: //p')
    [ -n "$candidate" ] && [ "$candidate" != "(none)" ]
}

present() { # PROBE PACKAGE
    case $1 in
    EMULATOR) present "file:$emulator_files" "$2" ;;
    cmd:*) command -v "${1#cmd:}" >/dev/null 2>&1 ;;
    pc:*)
        if command -v pkg-config >/dev/null 2>&1; then
            pkg-config --exists "${1#pc:}"
        else
            dpkg-query -W -f '${Status}' "$2" 2>/dev/null | grep -q 'ok installed'
        fi
        ;;
    file:*)
        # The pattern may match several files; one is enough.
        for file in ${1#file:}; do
            [ -e "$file" ] && return 0
        done
        return 1
        ;;
    esac
}

missing_of() { # GROUP: prints the packages
    needs "$1" | while read -r probe package; do
        present "$probe" "${package#\?}" || echo "$package"
    done
}

# Runs as root. No service is started while packages are configured (policy-rc.d), and the services
# of packages that are installed here are disabled, so that no server starts at the next boot.
install_as_root() {
    export DEBIAN_FRONTEND=noninteractive
    policy=/usr/sbin/policy-rc.d
    made=
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
        made=1
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        trap 'exit 1' HUP INT TERM
    fi
    apt-get install -y --no-install-recommends "$@"
    if [ -n "$made" ]; then
        rm -f $policy
    fi
    if [ -d /run/systemd/system ]; then
        for package in "$@"; do
            case $package in
            redis-server | postgresql | pgbouncer | prometheus)
                systemctl disable --quiet "$package" || true ;;
            esac
        done
    fi
}

# Keeps, of packages marked "?", those that apt knows. The Java runtime is only for the
# Firestore emulator, so it is left out if the emulator is.
decide() {
    kept=
    emulator=
    if present "file:$emulator_files" ""; then emulator=yes; fi
    for package in "$@"; do
        case $package in
        \?*firestore-emulator) if available "${package#\?}"; then
            kept="$kept ${package#\?}"
            emulator=yes
        fi ;;
        \?*jre*) ;;
        \?*) if available "${package#\?}"; then kept="$kept ${package#\?}"; fi ;;
        *) kept="$kept $package" ;;
        esac
    done
    case " $* " in
    *" ?default-jre-headless "*)
        if [ -n "$emulator" ] && available default-jre-headless; then
            kept="$kept default-jre-headless"
        fi
        ;;
    esac
    echo "$kept"
}

if [ "${1-}" = --as-root ]; then
    shift
    apt-get update -q
    packages=$(decide "$@")
    # shellcheck disable=SC2086 # one word per package
    install_as_root $packages
    exit 0
fi

check_only=
if [ "${1-}" = --check ]; then
    check_only=1
    shift
fi
all=
required=
for group in "$@"; do
    for package in $(missing_of "$group"); do
        case "$all " in *" $package "*) continue ;; esac
        all="$all $package"
        case $package in
        \?*) ;;
        *) required="$required $package" ;;
        esac
    done
done

if [ -n "$check_only" ]; then
    [ -n "$required" ] || exit 0
    echo "missing:$required" >&2
    echo "'make deps' installs what building, testing and checking need" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null 2>&1; then
    [ -n "$required" ] || exit 0
    echo "install-deps: this is no Debian or Ubuntu; please install what these packages hold:" >&2
    echo " $required" >&2
    exit 1
fi
# shellcheck disable=SC2086 # one word per package
if [ -z "$required" ] && [ -z "$(decide $all)" ]; then
    exit 0
fi
echo "Installing what is missing:$(echo "$all" | sed 's/ ?\([^ ]*\)/ \1 (if apt has it)/g')"
# shellcheck disable=SC2086
if [ "$(id -u)" = 0 ]; then
    "$0" --as-root $all
elif command -v sudo >/dev/null 2>&1; then
    sudo "$0" --as-root $all
else
    echo "install-deps: run this as root, or install sudo: $0 $*" >&2
    exit 1
fi
