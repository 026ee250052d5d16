#!/usr/bin/env -S zsh -f
# The completions that zsh offers when TAB is pressed: offers.zsh FOLDER LINE prints one match per line,
# and at the end "=> " and the completed line. An interactive zsh runs on a terminal of its own, with
# FOLDER in fpath.
if [[ $1 != --inside ]]; then
    zmodload zsh/zpty
    result=$(mktemp)
    export OFFERS_FOLDER=$1 OFFERS_LINE=$2 OFFERS_RESULT=$result
    zpty shell zsh -f -i
    zpty -w shell "source ${(q)0:A} --inside"
    while zpty -r shell screen; do :; done # until it ends
    cat $result
    rm $result
    exit
fi

PS1=
LISTMAX=1000000 # lists are shown without a question
fpath=($OFFERS_FOLDER $fpath)
autoload -U compinit
compinit -u -D

# Every match goes through this builtin. With -O, -A or -D it only filters.
compadd() {
    local -a matches
    if [[ " ${(j: :)@[1,(i)--]} " != *" -"[OAD]" "* ]]; then
        builtin compadd -O matches "$@"
        (( $#matches )) && print -rl -- $matches >>$OFFERS_RESULT
    fi
    builtin compadd "$@"
}

press_tab() {
    BUFFER=$OFFERS_LINE
    CURSOR=$#BUFFER
    zle expand-or-complete
    print -r -- "=> $BUFFER" >>$OFFERS_RESULT
    BUFFER=exit
    zle accept-line
}
zle -N zle-line-init press_tab
