#!/bin/sh
# The API reference, as HTML in OUT, from the public headers. Fails if a public name has no comment, or
# a comment is not understood.
#
#     api-docs.sh OUT
set -eu
cd "$(dirname "$0")/.."
out=${1:?}
version=$(sed -n 's/^#define SYNCGUARD_VERSION_STRING "\(.*\)"/\1/p' include/syncguard/types.h)
mkdir -p "$out"
cat >"$out/main.dox" <<'END'
/** @mainpage
The C interface of SyncGuard, made from its headers. Most programs need
@ref syncguard/backend.h "syncguard/backend.h" (open and close a store, single operations),
@ref syncguard/lock.h "syncguard/lock.h" (wait for a lock, renew it, release it) and
@ref syncguard/lock_options.h "syncguard/lock_options.h". Statuses are in
@ref syncguard/error.h "syncguard/error.h". The headers in syncguard/sys are for authors of backends.
*/
END
doxygen - <<END >"$out/log" 2>&1
PROJECT_NAME = "SyncGuard for C"
PROJECT_NUMBER = $version
OUTPUT_DIRECTORY = "$out"
INPUT = "$out/main.dox" include/syncguard.h include/syncguard include/syncguard/sys
FILE_PATTERNS = *.h *.dox
STRIP_FROM_PATH = include
STRIP_FROM_INC_PATH = include
FILTER_PATTERNS = *.h=scripts/api-filter.py
OPTIMIZE_OUTPUT_FOR_C = YES
JAVADOC_AUTOBRIEF = YES
MARKDOWN_SUPPORT = NO
AUTOLINK_SUPPORT = YES
TYPEDEF_HIDES_STRUCT = YES
ENABLE_PREPROCESSING = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = SYNCGUARD_API= SYNCGUARD_MUST_CHECK= "SYNCGUARD_PRINTF(a,b)=" __GNUC__=12
EXCLUDE_SYMBOLS = SYNCGUARD_API SYNCGUARD_MUST_CHECK SYNCGUARD_STATUS_ENUM SYNCGUARD_*_H
EXTRACT_ALL = NO
HIDE_UNDOC_MEMBERS = NO
WARN_IF_UNDOCUMENTED = YES
WARN_NO_PARAMDOC = NO
WARN_IF_INCOMPLETE_DOC = NO
WARN_FORMAT = "\$file:\$line: \$text"
QUIET = YES
GENERATE_LATEX = NO
GENERATE_HTML = YES
HTML_OUTPUT = html
HTML_TIMESTAMP = NO
HAVE_DOT = NO
SEARCHENGINE = YES
END
# Members of a struct and values of an enum may be explained by its comment.
if grep -E ': (warning|error): ' "$out/log" |
    grep -vE 'Member .* \((variable|enumvalue)\) of .* is not documented'; then
    echo "api-docs: public names without a comment, or comments that Doxygen does not understand" >&2
    exit 1
fi
echo "$out/html/index.html"
