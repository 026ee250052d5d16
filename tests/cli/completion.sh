#!/bin/bash
# Completion offers every command and every option of --help (which pages.sh compares with the man
# pages), in bash, and in zsh and fish where they are installed.
# shellcheck source=tests/cli/lib.sh
source "$(dirname "$0")/lib.sh" "$@"
completions=$2/../../completions
# shellcheck disable=SC1091 # of the tree
source "$completions/syncguard.bash"

offers() { # WORD...: prints the completions of the last word
    COMP_WORDS=("$SG" "$@")
    COMP_CWORD=$#
    COMPREPLY=()
    _syncguard
    printf '%s\n' "${COMPREPLY[@]}" | sort
}
commands=$("$SG" --help | sed -n 's/^  \([a-z]*\)  *.*/\1/p' | sort)
same "commands" "$commands"$'\n' "$(offers '' | grep -v '^--')"$'\n'
for command in $commands; do
    "$SG" "$command" --help | grep -oE '^  +(-[a-zA-Z], )?--[a-z-]+' | tr -d ' ' | tr ',' '\n' |
        sort >in-help
    offers "$command" - >offered
    check "options of $command: $(diff in-help offered | tr '\n' ' ')" cmp -s in-help offered
done
same "part of an option" --on-lost "$(offers run --on)"
same "values" $'kill\nwarn' "$(offers run --on-lost '')"
same "a value that only the user knows" "" "$(offers run --ttl '' | tr -d '\n')"
same "a key that only the user knows" "" "$(offers run -w 5 '' | tr -d '\n')"
check "a program behind the key" grep -qx true <(offers run -n -w 5 k tru)
check "also behind --" grep -qx true <(offers run -n -w 5 k -- tru)
check "no option of ours there" lacks "$(offers run k --on)" --on-lost

PATH=$(dirname "$SG"):$PATH
if command -v fish >/dev/null; then
    for command in $commands; do
        fish --no-config -c "source $completions/syncguard.fish; complete -C 'syncguard $command --'" |
            cut -f1 | grep -- -- | sort -u >offered
        check "fish: options of $command" [ -z "$(comm -13 offered <(grep -oE '^  .{4}--[a-z-]+' <("$SG" "$command" --help) | grep -oE -- '--.*' | sort))" ]
    done
    same "fish: commands" "$commands" "$(fish --no-config -c \
        "source $completions/syncguard.fish; complete -C 'syncguard '" | cut -f1 | sort)"
else
    echo "SKIP completion_fish: fish is not installed"
fi
if command -v zsh >/dev/null; then
    check "zsh: parses" zsh -n "$completions/_syncguard"
    zsh_offers() { # LINE: after a TAB in an interactive zsh; the line is then in the file line
        "$(dirname "$0")/offers.zsh" "$completions" "syncguard $1" >all
        grep '^=> ' all >line
        grep -v '^=> ' all | sort -u
    }
    same "zsh: commands" "$(offers '')" "$(zsh_offers '')"
    for command in $commands; do
        same "zsh: options of $command" "$(offers "$command" -)" "$(zsh_offers "$command -")"
    done
    same "zsh: part of an option" --on-lost "$(zsh_offers "run --on")"
    same "zsh: and the line" "=> syncguard run --on-lost " "$(cat line)"
    same "zsh: values" $'kill\nwarn' "$(zsh_offers "run --on-lost ")"
    same "zsh: a value that only the user knows" "" "$(zsh_offers "run --ttl ")"
    same "zsh: a key that only the user knows" "" "$(zsh_offers "run -w 5 ")"
    check "zsh: a program behind the key" grep -qx true <(zsh_offers "run -n -w 5 k tru")
    check "zsh: also behind --" grep -qx true <(zsh_offers "run -n -w 5 k -- tru")
    same "zsh: no option of ours there" "" "$(zsh_offers "run k --on")"
    same "zsh: it has answered" "=> syncguard run k --on" "$(cat line)"
else
    echo "SKIP completion_zsh: zsh is not installed"
fi
finish
