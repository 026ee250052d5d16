#!/bin/sh
# Runs every program given, so that one missed bar does not hide the figures of the others; fails if
# any of them did.
failed=0
for program in "$@"; do
    "$program" || failed=1
done
exit $failed
