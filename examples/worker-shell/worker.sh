#!/usr/bin/env bash
# A worker in bash and curl, over the HTTP worker protocol.
#
#     worker.sh COORDINATOR_URL NODE_ID ADDRESS DIR
#
# It stands beside any server that serves the files under DIR at ADDRESS (host:port), and decides which shards
# are there: DIR/KEYSPACE/SHARD exists while this node serves that shard, and says under which epoch. Replace
# the four functions below by what your service needs: start a process, mount a disk, call a program.
#
# For keyspaces with ownership `eventual`: the server beside it knows nothing of the lease, so for `exclusive`
# ones it reports that it cannot. Coordinators answer `accept: text/plain` with one order a line; see
# docs/src/protocols/worker-http.md.
set -u
coordinator=$1 id=$2 address=$3 dir=$4

load()   { mkdir -p "$dir/$1" "$dir/.data/$1" && echo "data of $2" >"$dir/.data/$1/$2"; }
serve()  { echo "$id epoch $3" >"$dir/$1/.$2" && mv "$dir/$1/.$2" "$dir/$1/$2"; }
unload() { rm -f "$dir/$1/$2"; }
drop()   { rm -f "$dir/.data/$1/$2"; }

declare -A order phase carried reason ownership   # by "KEYSPACE SHARD PLACEMENT"; ownership by keyspace
leaving=false
trap 'leaving=true' TERM

post() { # PATH BODY; answers in lines
    curl --silent --show-error --max-time 10 -H 'accept: text/plain' --data-binary "$2" "$coordinator/v1/worker/$1"
}

register() { # as a new process, which holds nothing
    local word
    unset order phase carried reason; declare -gA order phase carried reason
    rm -rf "${dir:?}"/*
    until answer=$(post register "{\"id\":\"$id\",\"address\":\"$address\"}") &&
          read -r word incarnation heartbeat_ms lease_ms <<<"$answer" && [[ $word == welcome ]]; do
        echo "register: $answer" >&2
        [[ $leaving == true ]] && exit # nothing is held
        sleep 1
    done
    heard=$SECONDS sequence=0 applied=0 said=
}

register_again() { # as the one that it is, with all it holds: only the coordinator is new
    answer=$(post register "{\"id\":\"$id\",\"address\":\"$address\",\"incarnation\":$incarnation}")
    applied=0 said=
}

reports() { # as a JSON list, whole
    local replica keyspace shard placement list=
    for replica in "${!order[@]}"; do
        read -r keyspace shard placement <<<"$replica"
        list+="{\"replica\":{\"keyspace\":\"$keyspace\",\"shard\":$shard,\"placement\":$placement},"
        list+="\"phase\":\"${phase[$replica]}\",\"epoch\":${carried[$replica]},"
        list+="\"attempts\":1,\"reason\":\"${reason[$replica]}\"},"
    done
    echo "[${list%,}]"
}

other_stay() { # whether the shard is here under another placement, too: it came back before the former one had gone
    local other
    for other in "${!order[@]}"; do
        [[ $other == "${1% *} "* && $other != "$1" ]] && return
    done
    return 1
}

carry_out() { # one replica, towards what its order says
    local keyspace shard role state epoch granted
    read -r keyspace shard _ <<<"$1"
    read -r role state epoch granted _ <<<"${order[$1]}"
    if [[ ${ownership[$keyspace]} != eventual && $state == l* ]]; then
        phase[$1]=failed reason[$1]="worker.sh serves keyspaces with ownership eventual"
        return
    fi
    case $state in
        load) [[ ${phase[$1]} == ready ]] || { load "$keyspace" "$shard" && phase[$1]=ready; } ;;
        live)
            [[ $granted == granted ]] || return
            load "$keyspace" "$shard" && serve "$keyspace" "$shard" "$epoch" && phase[$1]=serving ;;
        unload) other_stay "$1" || unload "$keyspace" "$shard" && phase[$1]=unloaded ;;
        unload_final)
            other_stay "$1" || { unload "$keyspace" "$shard" && drop "$keyspace" "$shard"; } && phase[$1]=dropped ;;
    esac
    carried[$1]=$epoch
}

forget() {
    local keyspace shard
    read -r keyspace shard _ <<<"$1"
    other_stay "$1" || { unload "$keyspace" "$shard"; drop "$keyspace" "$shard"; }
    unset "order[$1]" "phase[$1]" "carried[$1]" "reason[$1]"
}

take() { # the answer to a heartbeat
    local word a b c rest replica base=
    local -A named=()
    may_go=false
    while read -r word a b c rest; do
        case $word in
            version) applied=$a base=$b ;;
            may_go) may_go=true ;;
            keyspace) ownership[$a]=$b ;;
            order)
                replica="$a $b $c" named["$a $b $c"]=1
                order[$replica]=$rest
                : "${phase[$replica]:=loading}" "${carried[$replica]:=0}" "${reason[$replica]:=}"
                carry_out "$replica" ;;
            removed) forget "$a $b $c" ;;
        esac
    done <<<"$1"
    if [[ $base == 0 ]]; then # these are all: what is not named is not wanted
        for replica in "${!order[@]}"; do [[ -v named[$replica] ]] || forget "$replica"; done
    fi
}

register
while true; do
    told=$(reports)
    # Waits for news only when there is none to tell.
    wait_ms=$((lease_ms / 4))
    [[ $told == "$said" && $leaving == false ]] || wait_ms=0
    read -r uptime _ </proc/uptime
    beat="{\"node\":\"$id\",\"incarnation\":$incarnation,\"sequence\":$((++sequence)),\"whole\":true,"
    beat+="\"sent_at_ms\":$((10#${uptime/./} * 10)),\"applied\":$applied,\"leaving\":$leaving,\"reports\":$told}"
    if ! answer=$(post "heartbeat?wait_ms=$wait_ms" "$beat"); then
        [[ $leaving == true ]] && ((SECONDS - heard > lease_ms / 1000)) && break # nobody is there to hand over to
        sleep 0.5
    elif [[ $answer == "error ended "* || $answer == "error not_registered "* ]]; then
        register
    elif [[ $answer == "error register_again "* ]]; then
        register_again
        sleep 0.1
    elif [[ $answer == error* ]]; then
        echo "heartbeat: $answer" >&2
        sleep 0.5
    else
        said=$told heard=$SECONDS
        take "$answer"
        [[ $may_go == true ]] && break
        ((wait_ms > 0)) || sleep 0.05
    fi
done
post leave "{\"node\":\"$id\",\"incarnation\":$incarnation}"
left=$?
sleep 0.5 # clients on their way are still answered
exit $left
