#!/bin/bash
# Messages about certificates: the fault, and the option that helps (Redis with TLS and client certificates).
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
url=$2
plain=${url%%\?*}
ca=$(printf '%s\n' "$url" | sed 's/.*[?&]\(tls_ca=[^&]*\).*/\1/')

exits "all is well" 0 run -n -b "$url" k true
exits "another CA" 77 run -n -b "$plain" k true
check "names tls_ca" contains "$err" "tls_ca names the file of the CA"
check "blames no password" lacks "$err" "password"
exits "another host" 77 run -n -b "$url&tls_server_name=db.example" k true
check "names tls_server_name" contains "$err" "tls_server_name"
check "says what is wrong" contains "$err" "mismatch"
check "blames no password" lacks "$err" "password"
exits "no certificate of our own" 69 run -n -b "$plain?$ca" k true
check "names tls_cert" contains "$err" "tls_cert"

mkfifo pipe
for option in tls_ca tls_cert tls_key; do
    others=
    [ $option != tls_key ] || others="&tls_cert=/etc/passwd"
    exits "no $option" 64 run -n -b "$plain?$option=$WORK/none$others" k true
    check "names $option" contains "$err" "$option cannot be read: "
    # Opening it would block, with the signals caught.
    code=0
    timeout -k 1 10 "$SG" run -n -b "$plain?$option=$WORK/pipe$others" k true 2>err || code=$?
    same "a pipe for $option" 64 $code
    check "says why" grep -q "$option cannot be read: it is not a regular file" err
done
# OpenSSL would ask for the password at the terminal, while the signals are caught.
openssl req -x509 -newkey rsa:2048 -passout pass:secret -keyout key.pem -out cert.pem -days 2 -subj /CN=x 2>/dev/null
code=0
timeout -k 1 10 setsid -w "$SG" run -n -b "$plain?$ca&tls_cert=$WORK/cert.pem&tls_key=$WORK/key.pem" k true \
    <>pipe 2>err || code=$?
same "an encrypted key" 64 $code
check "says so" grep -q "tls_key contains no key, is encrypted, or does not fit tls_cert" err
finish
