#!/bin/sh
# Builds the wheel of the Python package with the setuptools of the distribution; nothing is downloaded.
#
#     build-wheel.sh TO
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
to=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$top/bindings/python/pyproject.toml" "$top/bindings/python/README.md" "$top/bindings/python/src" "$work"
find "$work" -name __pycache__ -prune -exec rm -rf {} +
cd "$work"
# The hook of PEP 517 that pip and build call, too.
/usr/bin/python3 -c 'import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))' "$to" >log 2>&1 || {
    cat log >&2
    exit 1
}
tail -n 1 log
