#!/bin/bash
# Messages about certificates that are not accepted or cannot be read name the option of the URL that helps; the command
# never asks for the password of an encrypted sslkey (PostgreSQL with TLS).
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
url=$2
plain=${url%%\?*}
server="check the server's certificate, sslrootcert and the name of the host"

exits "all is well" 0 run -n -b "$url" k true
exits "another CA" 69 run -n -b "$plain?sslmode=verify-full" k true
check "names sslrootcert" contains "$err" "$server"
exits "another host" 69 run -n -b "${plain/localhost/db.example}?hostaddr=127.0.0.1&${url#*\?}" k true
check "says what is wrong" contains "$err" "does not match host name"
check "names the host" contains "$err" "$server"
echo none >none.pem
exits "no certificate in the file" 69 run -n -b "$plain?sslmode=verify-full&sslrootcert=$WORK/none.pem" k true
check "names sslrootcert" contains "$err" "$server"

# Our own certificate: the server's is not at fault.
for files in "none.pem&sslkey=none" "ca.pem&sslkey=none" "ca.pem&sslkey=open.key"; do
    cp "$(printf '%s\n' "$url" | sed 's/.*sslrootcert=\([^&]*\).*/\1/')" ca.pem
    echo none >open.key
    chmod 644 open.key
    exits "$files" 69 run -n -b "$url&sslcert=$WORK/${files/sslkey=/sslkey=$WORK/}" k true
    check "$files: names both" contains "$err" ": check sslcert and sslkey)"
done

# OpenSSL would catch the signals while it asks.
umask 077
openssl req -x509 -newkey rsa:2048 -passout pass:secret -keyout key.pem -out cert.pem -days 2 -subj /CN=x 2>/dev/null
encrypted="$url&sslcert=$WORK/cert.pem&sslkey=$WORK/key.pem"
mkfifo pipe

code=0
timeout -k 1 20 setsid -w "$SG" run -n -b "$encrypted" k true <>pipe 2>err || code=$?
same "refused" 69 $code
check "says why" grep -q "could not load private key file" err
check "does not ask" lacks "$(cat err)" "pass phrase"
setsid "$SG" run -b "$encrypted" k true <>pipe 2>err &
runner=$!
check "it keeps trying" until_true 20 test -s err
kill $runner
check "a signal ends it" until_true 10 gone $runner
exits "with the password" 0 run -n -b "$encrypted&sslpassword=secret" k true
finish
