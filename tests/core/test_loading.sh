#!/bin/sh
# Modules are loaded from the folder of libsyncguard and from nowhere else.
# usage: test_loading.sh LOADER LIBSYNCGUARD FAKE_GOOD FAKE_OTHER_ABI FAKE_EMPTY
set -eu
loader=$1 library=$2 good=$3 other=$4 empty=$5

home=$(mktemp -d)
work=$(mktemp -d)
trap 'rm -rf "$home" "$work"' EXIT
cp "$library" "$home/libsyncguard.so.0"
cp "$good" "$home/libsyncguard-postgres.so.0"
cp "$other" "$home/libsyncguard-redis.so.0"
cp "$empty" "$home/libsyncguard-firestore.so.0"
# A trap: what lies in the working directory must not be found.
cp "$good" "$work/libsyncguard-sqlite.so.0"
cd "$work"

failed=0
expect() { # FOLDER URL WORDS...
    folder=$1 url=$2
    shift 2
    said=$(LD_LIBRARY_PATH=$folder "$loader" "$url")
    for words in "$@"; do
        case $said in
        *"$words"*) ;;
        *)
            echo "$url: \"$said\" does not say \"$words\""
            failed=1
            ;;
        esac
    done
    case $said in
    *secret*)
        echo "$url: \"$said\" tells the password"
        failed=1
        ;;
    esac
}

expect "$home" 'memory:' 'Ok:'
expect "$home" 'postgres://u:secret@h' 'ServiceUnavailable' 'the fake was asked'
expect "$home" 'PostgreSQL://u:secret@h' 'the fake was asked'
expect "$home" 'redis://u:secret@h' 'InvalidArgument' 'another version'
expect "$home" 'rediss://u:secret@h' 'InvalidArgument' 'another version'
expect "$home" 'firestore://secret' 'InvalidArgument' 'no module'
expect "$home" 'sqlite:/tmp/secret' 'InvalidArgument' 'not installed'
expect "$home" 'other:secret' 'InvalidArgument' 'other'
echo 'not a library' >"$home/libsyncguard-sqlite.so.0"
expect "$home" 'sqlite:/tmp/secret' 'InvalidArgument' 'cannot be loaded'
# Loaded by a relative name, the library does not look beside itself: the name may mean another
# folder by now.
cp "$library" "$work/libsyncguard.so.0"
expect . 'sqlite:/tmp/secret' 'InvalidArgument' 'not installed'
exit $failed
