#!/bin/sh
# Runs a command whose wall clock is shifted: skewed.sh +2h COMMAND [ARGUMENT...]
#
# A faketime that was killed leaves files with its process id, and a later one with the same id refuses to run.
rm -f "/dev/shm/sem.faketime_sem_$$" "/dev/shm/faketime_shm_$$"
export DONT_FAKE_MONOTONIC=1
exec faketime -f "$@"
