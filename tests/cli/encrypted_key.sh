#!/bin/bash
# An encrypted sslkey: OpenSSL asks nobody for its password, and takes no signals away meanwhile (PostgreSQL with TLS).
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
url=$2
case $url in *\?*) url=$url'&' ;; *) url=$url'?' ;; esac
umask 077
openssl req -x509 -newkey rsa:2048 -passout pass:secret -keyout key.pem -out cert.pem -days 2 -subj /CN=x 2>/dev/null
url="${url}sslcert=$WORK/cert.pem&sslkey=$WORK/key.pem"
mkfifo pipe

code=0
timeout -k 1 20 setsid -w "$SG" run -n -b "$url" k true <>pipe 2>err || code=$?
same "refused" 69 $code
check "says why" grep -q "could not load private key file" err
check "asks nobody" lacks "$(cat err)" "pass phrase"
setsid "$SG" run -b "$url" k true <>pipe 2>err &
runner=$!
check "it keeps trying" until_true 20 test -s err
kill $runner
check "a signal ends it" until_true 10 gone $runner
exits "with the password" 0 run -n -b "$url&sslpassword=secret" k true
finish
