#!/bin/bash
# A role that may not create tables (PostgreSQL): the message does not blame its password.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
url=$2
case $url in *\?*) own=$url'&' ;; *) own=$url'?' ;; esac

exits "rows are enough" 0 run -n -b "$url" k true
exits "tables of its own" 77 setup -b "${own}lock_table=own_locks&fence_table=own_fences"
check "lacks a right" contains "$err" "lacks a right"
# Doctor would only say that there are no tables, and point back to setup.
check "what an administrator can do" contains "$err" "'syncguard setup --print'"
check "blames no password" lacks "$err" "password"

psql -qX "${url/worker@/postgres@}" -c "REVOKE INSERT ON ALL TABLES IN SCHEMA public FROM worker" || exit 1
exits "rows cannot be written" 77 run -n -b "$url" k true
check "lacks a right" contains "$err" "lacks a right"
check "points to doctor" contains "$err" "'syncguard doctor' shows which permissions are missing"
check "blames no password" lacks "$err" "password"
exits "doctor" 2 doctor -b "$url"
check "shows it" contains "$out" "the role lacks INSERT"

# A role that may not even connect: doctor cannot show more, and does not recommend doctor.
database=${url##*/}
psql -qX "${url/worker@/postgres@}" -c "REVOKE CONNECT ON DATABASE ${database%%\?*} FROM public" || exit 1
exits "no connection" 77 run -n -b "$url" k true
check "lacks CONNECT" contains "$err" "may not connect to the database"
exits "doctor cannot connect either" 77 doctor -b "$url"
check "lacks CONNECT" contains "$err" "may not connect to the database"
check "does not point to itself" lacks "$err" "syncguard doctor"
finish
