#!/bin/bash
# The Debian packages: two builds in different folders give the same bytes, lintian finds nothing, and they work in a
# root folder with nothing but the base system (in_clean_root.sh).
#
#     packages.sh SOURCES
set -eu
top=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The folder is copied into the root, where other users read it.
chmod 755 "$work"
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES CMAKE_C_COMPILER_LAUNCHER
export CCACHE_DISABLE=1

skip() { # NAME REASON
    echo "SKIP $1: $2"
}

has() { # COMMAND
    command -v "$1" >/dev/null 2>&1
}

# shellcheck disable=SC1091 # of the system
. /etc/os-release
if ! has dpkg-buildpackage || ! has dh; then
    skip packages "no dpkg-buildpackage or no debhelper; no package is built"
    exit 0
fi

mkdir -p "$work/first" "$work/packages" "$work/second folder" "$work/again"
"$top/scripts/build-deb.sh" "$work/first" "$work/packages" >"$work/names"
(umask 027 && TZ=Asia/Tokyo LC_ALL=C.UTF-8 "$top/scripts/build-deb.sh" "$work/second folder" "$work/again") >/dev/null
diff -r "$work/packages" "$work/again"
echo "$(grep -c '\.deb$' "$work/names") packages are the same in both folders"

if has lintian; then
    as_root=
    [ "$(id -u)" != 0 ] || as_root=--allow-root
    # There is no report of a wish for this package that the first upload could close.
    lintian $as_root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "$work/first/deb/"*.changes
else
    skip packages_lintian "lintian is not installed"
fi

case ${ID-} in
debian) archive=http://deb.debian.org/debian ;;
ubuntu) archive=http://archive.ubuntu.com/ubuntu ;;
*) archive= ;;
esac
if ! has mmdebstrap; then
    skip packages_clean_root "mmdebstrap is not installed"
elif [ -z "$archive" ]; then
    skip packages_clean_root "this is neither Debian nor Ubuntu"
elif [ "$(id -u)" != 0 ] && ! unshare --user --map-auto true 2>/dev/null; then
    skip packages_clean_root "needs root, or user namespaces with subordinate user ids"
elif ! /usr/lib/apt/apt-helper download-file "$archive/dists/$VERSION_CODENAME/InRelease" "$work/release" >/dev/null 2>&1; then
    skip packages_clean_root "$archive cannot be reached"
else
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    # Documents of other packages are left out, and nothing is synced: it is faster.
    mmdebstrap --quiet --variant=minbase --format=null --include=bash-completion,zsh,fish,pkg-config \
        ${proxy:+--aptopt="Acquire::http::Proxy \"$proxy\""} --aptopt='APT::Install-Recommends "false"' \
        --dpkgopt=force-unsafe-io --dpkgopt=path-exclude='/usr/share/locale/*' --dpkgopt=path-exclude='/usr/share/doc/*' \
        --customize-hook="copy-in '$work/packages' /" \
        --customize-hook="'$here/in_clean_root.sh' \"\$1\"" "$VERSION_CODENAME" /dev/null
fi
