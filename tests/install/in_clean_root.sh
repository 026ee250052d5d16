#!/bin/bash
# Installs the packages in /packages of a root folder, uses them, removes them, and installs them again.
#
#     in_clean_root.sh ROOT
#
# shellcheck disable=SC2016 # much is for a shell or a program inside
set -u
root=$1
failed=0
checks=0
export DEBIAN_FRONTEND=noninteractive LC_ALL=C HOME=/root
unset SYNCGUARD_URL XDG_STATE_HOME XDG_CONFIG_HOME

inside() { # COMMAND...
    chroot "$root" "$@"
}

check() { # TEXT CONDITION...
    local text=$1
    shift
    checks=$((checks + 1))
    "$@" && return
    echo "FAILED: $text"
    failed=1
}

same() { # TEXT WANTED GOT
    check "$1: wanted '$2', got '$3'" [ "$2" = "$3" ]
}

apt() { # ARGUMENT...: shows its output only if it fails
    local said
    if ! said=$(inside apt-get -qq -y --no-install-recommends "$@" 2>&1); then
        echo "apt-get $*: $said"
        exit 1
    fi
}

# Our files, but for the packages themselves and the lists of apt and dpkg.
ours() {
    (cd "$root" && find . -xdev \( -path ./packages -o -path ./var/lib/dpkg -o -path ./var/lib/apt -o -path ./var/cache \
        -o -path ./var/log -o -path ./proc -o -path ./sys -o -path ./dev \) -prune -o -iname '*syncguard*' -print | sort)
}

fence() {
    inside syncguard run deploy -- sh -c 'echo "$SYNCGUARD_FENCE"'
}

same "nothing is there before" "" "$(ours)"
mapfile -t packages < <(cd "$root" && find ./packages -name '*.deb')
apt install "${packages[@]}"
same "every package is installed" ${#packages[@]} \
    "$(inside dpkg-query -W -f '${db:Status-Abbrev}\n' 'libsyncguard*' 'syncguard*' 'python3-syncguard*' | grep -c '^ii')"

same "root runs a program under a lock" 000000000000001 "$(fence)"
check "the lock is kept in the default file" [ -s "$root/var/lib/syncguard/locks.db" ]
inside install -d -o 1000 -g 1000 /srv/user
same "a user runs a program under a lock" ran \
    "$(HOME=/srv/user chroot --userspec=1000:1000 "$root" syncguard run deploy -- echo ran)"
for url in redis://127.0.0.1:1 postgres://127.0.0.1:1/db firestore://project; do
    said=$(inside env FIRESTORE_EMULATOR_HOST=127.0.0.1:1 syncguard status -b "$url" deploy 2>&1)
    case $said in
    *"not installed"* | *"cannot be loaded"* | *InvalidArgument* | '') check "$url: $said" false ;;
    *) checks=$((checks + 1)) ;;
    esac
done
same "Python" "acquired" "$(inside python3 -c 'import syncguard
with syncguard.open() as store, store.acquire("python"): print("acquired")')"
check "the benchmark has its libraries" \
    [ -z "$(inside ldd /usr/libexec/syncguard/syncguard-bench | grep 'not found')" ]
for library in syncguard syncguard-sqlite syncguard-redis syncguard-postgres syncguard-firestore; do
    check "pkg-config: $library" inside sh -c "pkg-config --print-errors --cflags --libs $library >/dev/null"
done
check "the contract suite" inside sh -c '[ -s "$(pkg-config --variable=contractdir syncguard)/main.c" ]'
check "the folder of modules" inside sh -c '[ -e "$(pkg-config --variable=moduledir syncguard)/libsyncguard-sqlite.so.0" ]'

# Completion, as each shell finds it by itself.
same "bash" run "$(inside bash -c '. /usr/share/bash-completion/bash_completion
    _completion_loader syncguard
    COMP_WORDS=(syncguard ru) COMP_CWORD=1
    "$(complete -p syncguard | sed "s/.*-F \([^ ]*\).*/\1/")" && echo "${COMPREPLY[*]}"')"
same "zsh" _syncguard "$(inside zsh -fc 'autoload -U compinit && compinit -u -D && echo $_comps[syncguard]')"
same "fish" run "$(inside fish -c "complete -C 'syncguard ru'" | cut -f1)"
check "a man page" [ -s "$root/usr/share/man/man1/syncguard-run.1.gz" ]

# Removal leaves only the data; after a new installation the locks and counters are still there.
mapfile -t names < <(inside dpkg-query -W -f '${Package}\n' 'libsyncguard*' 'syncguard*' 'python3-syncguard*')
apt remove "${names[@]}"
data="./srv/user/.local/state/syncguard
./var/lib/syncguard"
same "only the data is left" "$data" "$(ours)"
check "it is the whole file" [ -s "$root/var/lib/syncguard/locks.db" ]
same "dpkg keeps nothing that a purge would remove" "" "$(inside dpkg-query -W 'libsyncguard*' 'syncguard*' 'python3-syncguard*' 2>/dev/null)"
mapfile -t packages < <(cd "$root" && find ./packages -name 'syncguard_*' -o -name 'libsyncguard0_*' -o -name '*-sqlite0_*')
apt install "${packages[@]}"
same "fences go on" 000000000000002 "$(fence)"
said=$(inside syncguard status -b redis://127.0.0.1:1 deploy 2>&1)
check "a store without its package: $said" [ "${said/not installed/}" != "$said" ]
echo "clean root: $checks checks"
exit $failed
