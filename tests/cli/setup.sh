#!/bin/bash
# setup prints what it did to the database (PostgreSQL). The test server has the tables already.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
url=$2
shown=${url%%\?*}
case $url in *\?*) own=$url'&' ;; *) own=$url'?' ;; esac
own=${own}lock_table=other_locks\&fence_table=other_fences

exits "tables that are there" 0 setup -b "$url"
check "nothing to do, $out" contains "$out" ": nothing to do, it is set up already"
exits "new ones, first only printed" 0 setup --print -b "$own"
check "statements, $out" contains "$out" 'CREATE TABLE IF NOT EXISTS "other_locks"'
check "nothing else, $out" lacks "$out" "created"
exits "new ones" 0 setup -b "$own"
same "two lines" 2 "$(wc -l <out)"
check "the store, $shown in $out" contains "$out" "postgres://"
check "no options, $out" lacks "$out" "lock_table"
check "the locks, $out" contains "$out" ': created the table "other_locks"'
check "the counters, $out" contains "$out" ': created the table "other_fences"'
exits "again" 0 setup -b "$own"
check "nothing to do, $out" contains "$out" ": nothing to do, it is set up already"
exits "no server" 69 setup -b postgres://127.0.0.1:1/x
same "nothing was done" "" "$out"
finish
