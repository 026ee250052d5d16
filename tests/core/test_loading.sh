#!/bin/sh
# Modules are loaded from the folder of libsyncguard and from nowhere else.
# usage: test_loading.sh LOADER LIBSYNCGUARD FAKE_GOOD FAKE_TOY FAKE_DASHED FAKE_OTHER_ABI FAKE_EMPTY
set -eu
loader=$1 library=$2 good=$3 toy=$4 dashed=$5 other=$6 empty=$7

home=$(mktemp -d)
work=$(mktemp -d)
trap 'rm -rf "$home" "$work"' EXIT
cp "$library" "$home/libsyncguard.so.0"
cp "$good" "$home/libsyncguard-postgres.so.0"
cp "$other" "$home/libsyncguard-redis.so.0"
cp "$empty" "$home/libsyncguard-firestore.so.0"
# A trap: modules in the working directory must not be found.
cp "$good" "$work/libsyncguard-sqlite.so.0"
cp "$toy" "$work/libsyncguard-toy.so"
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

# Nothing is loaded through the environment or the working directory, whatever the name.
refuse() { # FOLDER URL WORDS...
    expect "$@"
    case $said in
    *'[fake module]'*)
        echo "$2: a file was loaded"
        failed=1
        ;;
    esac
}

# A module of an earlier version needs symbols of that version, which the loader does not find.
real=$(dirname "$library")/libsyncguard-sqlite.so.0
if [ -e "$real" ]; then
    mkdir "$home/older"
    cp "$library" "$home/older/libsyncguard.so.0"
    sed 's/SYNCGUARD_SYS_[0-9]/SYNCGUARD_SYS_x/g' "$real" >"$home/older/libsyncguard-sqlite.so.0"
    expect "$home/older" 'sqlite:/tmp/secret' 'InvalidArgument' \
        "$home/older/libsyncguard-sqlite.so.0 was built for another version of the library: install both from the same version (it needs SYNCGUARD_SYS_x)"
fi

expect "$home" 'memory:' 'Ok:'
expect "$home" 'postgres://u:secret@h' 'ServiceUnavailable' 'the fake was asked'
expect "$home" 'PostgreSQL://u:secret@h' 'the fake was asked'
expect "$home" 'redis://u:secret@h' 'InvalidArgument' 'another version'
expect "$home" 'redis://u:secret@h' 'InvalidArgument' 'libsyncguard-redis.so.0 was built'
expect "$home" 'rediss://u:secret@h' 'InvalidArgument' 'another version'
expect "$home" 'firestore://secret' 'InvalidArgument' 'no module'
expect "$home" 'sqlite:/tmp/secret' 'InvalidArgument' 'not installed'
expect "$home" 'other:secret' 'InvalidArgument' 'other'
echo 'not a library' >"$home/libsyncguard-sqlite.so.0"
expect "$home" 'sqlite:/tmp/secret' 'InvalidArgument' 'cannot be loaded'

# Modules of other authors: by their scheme, in this folder.
refuse "$home:$work" 'toy:secret' 'InvalidArgument' 'toy is not known' 'libsyncguard-toy.so' 'sqlite:' 'memory:'
cp "$toy" "$home/libsyncguard-toy.so"
expect "$home" 'toy:secret' '[fake module]' 'the fake was asked'
expect "$home" 'TOY+tls://u:secret@h' 'the fake was asked'
expect "$home" 'toy+x:secret' 'InvalidArgument' 'does not know the scheme toy+x'
cp "$dashed" "$home/libsyncguard-toy-box.so"
expect "$home" 'toy-box:secret' 'the fake was asked'
cp "$empty" "$home/libsyncguard-hollow.so"
expect "$home" 'hollow:secret' 'InvalidArgument' 'no module' 'syncguard_module_hollow'
cp "$other" "$home/libsyncguard-strange.so"
expect "$home" 'strange:secret' 'InvalidArgument' 'no module'
echo 'not a library' >"$home/libsyncguard-text.so"
refuse "$home" 'text:secret' 'InvalidArgument' 'cannot be loaded'
# No scheme leads to another folder, to another suffix, or to a name that it only begins with.
mkdir "$home/libsyncguard-a" "$work/b"
cp "$toy" "$work/b/toy.so"
cp "$toy" "$home/libsyncguard-a.b.so"
cp "$toy" "$home/libsyncguard-abcdefghijklmnopqrstuvw.so"
cp "$toy" "$home/libsyncguard-sqlite.so"
refuse "$home" 'a.b:secret' 'InvalidArgument' 'a.b is not known'
refuse "$home" "a/../../$(basename "$work")/b/toy:secret" 'InvalidArgument' 'scheme'
refuse "$home" '../b/toy:secret' 'InvalidArgument' 'scheme'
refuse "$home" './toy:secret' 'InvalidArgument' 'scheme'
refuse "$home" '-toy:secret' 'InvalidArgument' 'scheme'
refuse "$home" '+toy:secret' 'InvalidArgument' 'scheme'
refuse "$home" 'abcdefghijklmnopqrstuvwx:secret' 'InvalidArgument' 'not known'
rm "$home/libsyncguard-sqlite.so.0"
refuse "$home" 'sqlite:/tmp/secret' 'InvalidArgument' 'not installed'

# If it was loaded by a relative name, the library does not search its own folder: the name may mean
# another folder by now.
cp "$library" "$work/libsyncguard.so.0"
refuse . 'sqlite:/tmp/secret' 'InvalidArgument' 'not installed'
refuse . 'toy:secret' 'InvalidArgument' 'toy is not known'
exit $failed
