# Completion of syncguard(1) for fish. Commands and options come from --help, so they are those of
# the installed version. The store is never asked: it may be far away, or hang.

function __syncguard_commands
    syncguard --help 2>/dev/null | string replace -rf '^  ([a-z]+) +(.*)' '$1\t$2'
end

function __syncguard_options
    set -l words (commandline -opc)
    set -l lines (syncguard $words[2] --help 2>/dev/null)
    string replace -rf '^  (-[a-zA-Z]), (--[a-z-]+)( [^ ]+)? +(.*)' '$1\t$4' -- $lines
    string replace -rf '^  (-[a-zA-Z], |    )(--[a-z-]+)( [^ ]+)? +(.*)' '$2\t$4' -- $lines
end

function __syncguard_needs_command
    test (count (commandline -opc)) -eq 1
end

function __syncguard_previous
    contains -- (commandline -opc)[-1] $argv
end

complete -c syncguard -f
complete -c syncguard -n __syncguard_needs_command -a '(__syncguard_commands)'
complete -c syncguard -n 'not __syncguard_needs_command; and string match -q -- "-*" (commandline -ct)' -a '(__syncguard_options)'
complete -c syncguard -n '__syncguard_previous --on-lost' -a 'kill warn'
complete -c syncguard -n '__syncguard_previous -b --backend' -a 'sqlite: redis:// rediss:// postgres:// firestore://'
complete -c syncguard -n '__syncguard_previous --plot --metrics' -F
complete -c syncguard -n 'not __syncguard_needs_command; and test (commandline -opc)[2] = run' -F
