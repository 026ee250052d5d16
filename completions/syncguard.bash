# Completion of syncguard(1) for bash. Commands and options come from --help, so they are those of
# the installed version. The store is never asked: it may be far away, or hang.
# shellcheck shell=bash

# _syncguard_help PROGRAM COMMAND: lines of "LETTER NAME VALUE", "." for what an option lacks.
_syncguard_help()
{
    "$1" "$2" --help 2>/dev/null |
        sed -nE 's/^  (-[a-zA-Z]), (--[a-z-]+)( ([^ ]+))? .*/\1 \2 .\4/p;
                 s/^      (--[a-z-]+)( ([^ ]+))? .*/. \1 .\3/p'
}

# Index of the first operand behind the command; COMP_CWORD if there is none yet.
_syncguard_operand()
{
    local options=$1 index=2 word
    while ((index < COMP_CWORD)); do
        word=${COMP_WORDS[index]}
        case $word in
        --) index=$((index + 1)); break ;;
        -?*) # An option with a value takes the next word, too.
            if [[ $options =~ (^|[[:space:]])"$word"([[:space:]]--[a-z-]+)?[[:space:]]\.[^[:space:]] ]]; then
                index=$((index + 1))
            fi ;;
        *) break ;;
        esac
        index=$((index + 1))
    done
    echo $((index < COMP_CWORD ? index : COMP_CWORD))
}

_syncguard()
{
    local program=${COMP_WORDS[0]} command=${COMP_WORDS[1]:-} current=${COMP_WORDS[COMP_CWORD]}
    local previous=${COMP_WORDS[COMP_CWORD - 1]} options words='' letter name value operand
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        words=$("$program" --help 2>/dev/null | sed -nE 's/^  ([a-z]+) .*/\1/p')
        mapfile -t COMPREPLY < <(compgen -W "$words --help --version" -- "$current")
        return
    fi
    options=$(_syncguard_help "$program" "$command")
    if [[ $command == run ]]; then
        operand=$(_syncguard_operand "$options")
        if ((COMP_CWORD > operand)); then # the program, and its own completion
            if [[ ${COMP_WORDS[operand + 1]:-} == -- ]] && ((COMP_CWORD > operand + 1)); then
                operand=$((operand + 1))
            fi
            if declare -F _command_offset >/dev/null; then
                _command_offset $((operand + 1))
            else
                mapfile -t COMPREPLY < <(compgen -c -- "$current")
            fi
            return
        fi
    fi
    case $previous in
    --on-lost) words='kill warn' ;;
    -b | --backend) words='sqlite: redis:// rediss:// postgres:// firestore:// @' ;;
    --plot | --metrics) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    *)
        while read -r letter name value; do
            if [[ $value != . && ($previous == "$name" || $previous == "$letter") ]]; then
                return # a value that only the user knows
            fi
            words+=" $name"
            [[ $letter == . ]] || words+=" $letter"
        done <<<"$options"
        [[ $current == -* ]] || words=''
        ;;
    esac
    [[ -z $words ]] || mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}
complete -F _syncguard syncguard
