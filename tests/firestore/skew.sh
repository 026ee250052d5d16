#!/bin/sh
# A shifted clock, as doctor and acquire see it.
#
#     skew.sh SYNCGUARD          (beside the emulator, see tests/servers)
set -u
syncguard=$1
skewed=$(dirname "$0")/../servers/skewed.sh
failed=0

if ! command -v faketime >/dev/null; then
    echo "SKIP firestore-skew: faketime is needed to shift the clock"
    exit 77
fi

check() { # SHIFT DOCTOR ACQUIRE
    timeout 30 "$skewed" "$1" "$syncguard" doctor -b firestore://skew
    doctor=$?
    timeout 30 "$skewed" "$1" "$syncguard" acquire -n --ttl 1s -b firestore://skew "skew$1"
    acquire=$?
    if [ $doctor -ne "$2" ] || [ $acquire -ne "$3" ]; then
        echo "shifted by $1: doctor exits $doctor, not $2; acquire exits $acquire, not $3"
        failed=1
    fi
}
check +0s 0 0
check +0.15s 0 0
check -0.15s 0 0
check +0.3s 1 0
check -0.3s 1 0
check +0.7s 2 69
check -0.7s 2 69
exit $failed
