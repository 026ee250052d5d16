#!/bin/sh
# Builds the Debian packages from a copy of the sources, without packages of debug symbols.
#
#     build-deb.sh BUILD TO      works in BUILD/deb, puts the packages into TO in place of earlier ones
#
# packaging/debian is the folder debian of the source package.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1/deb"
work=$(cd "$1/deb" && pwd)
to=$(cd "$2" && pwd)
version=$(sed -n 's/^project(syncguard VERSION \([0-9.]*\).*/\1/p' "$top/CMakeLists.txt")
packaged=$(dpkg-parsechangelog -l "$top/packaging/debian/changelog" -S Version)
if [ "${packaged%-*}" != "$version" ]; then
    echo "build-deb: packaging/debian/changelog is about $packaged, CMakeLists.txt about $version" >&2
    exit 1
fi

rm -rf "$work"
mkdir -p "$work/syncguard-$version"
"$top/scripts/copy-sources.sh" "$top" "$work/syncguard-$version"
cd "$work/syncguard-$version"
cp -R packaging/debian debian
"$top/scripts/build-quietly.sh" "$work/log" dpkg-buildpackage -b -us -uc -J"${JOBS:-$(nproc)}"
rm -f "$to"/libsyncguard*_*.deb "$to"/syncguard_*.deb "$to"/syncguard-bench_*.deb "$to"/python3-syncguard_*.deb
cd "$work"
for package in *.deb; do
    case $package in
    *-dbgsym_*) ;;
    *) cp "$package" "$to/" && echo "$package" ;;
    esac
done
