#!/usr/bin/env bash
# A worker in bash and curl, over the HTTP worker protocol.
#
#     worker.sh COORDINATOR_URL NODE_ID ADDRESS DIR
#
#     partage keyspace create pages --ownership eventual
#     mkdir /srv/n1; python3 -m http.server --bind 127.0.0.1 --directory /srv/n1 8002 &
#     worker.sh http://127.0.0.1:7400 n1 127.0.0.1:8002 /srv/n1
#
# It stands beside any server that serves the files under DIR at ADDRESS (host:port), and decides which shards
# are there: DIR/KEYSPACE/SHARD exists while this node serves that shard, and says under which epoch. Replace
# the four functions below by what your service needs: start a process, mount a disk, call a program.
#
# DIR is new, or empty, or the one that this node had before: what is in it is deleted at each start.
#
# For keyspaces with ownership `eventual`: the server beside it knows nothing of the lease, so for `exclusive`
# ones it reports that it cannot. Coordinators answer `accept: text/plain` with one order a line; see
# docs/src/protocols/worker-http.md.
set -u
if (($# != 4)); then
    echo "usage: worker.sh COORDINATOR_URL NODE_ID ADDRESS DIR" >&2
    exit 2
fi
coordinator=$1 id=$2 address=$3 dir=$4 mark=$4/.partage-worker

if ! mkdir -p "$dir"; then
    exit 1
elif [[ -e $mark ]]; then
    if [[ $(<"$mark") != "$id" ]]; then
        echo "worker.sh: $dir belongs to node $(<"$mark"): give node $id a directory of its own" >&2
        exit 1
    fi
elif [[ -n $(ls -A "$dir") ]]; then
    echo "worker.sh: $dir is not empty, and nothing says that it is of this worker, which deletes what is in its" \
        "directory at each start: give a new or an empty one" >&2
    exit 1
elif ! echo "$id" >"$mark"; then
    exit 1
fi

load()   { mkdir -p "$dir/$1" "$dir/.data/$1" && echo "data of $2" >"$dir/.data/$1/$2"; }
serve()  { echo "$id epoch $3" >"$dir/$1/.$2" && mv "$dir/$1/.$2" "$dir/$1/$2"; }
unload() { rm -f "$dir/$1/$2"; }
drop()   { rm -f "$dir/.data/$1/$2"; }

declare -A order phase carried reason tries due ownership # by "KEYSPACE SHARD PLACEMENT"; ownership by keyspace
leaving=false registered=false asked=
# Who holds nothing has nothing to hand over.
trap 'leaving=true; [[ $registered == true ]] || { kill $asked 2>/dev/null; exit 0; }' TERM

post() { # PATH BODY; answers in lines
    curl --silent --show-error --max-time 10 -H 'accept: text/plain' --data-binary "$2" "$coordinator/v1/worker/$1"
}

register() { # as a new process, which holds nothing
    local word= answer
    registered=false
    if [[ $leaving == true ]]; then exit 0; fi
    unset order phase carried reason tries due; declare -gA order phase carried reason tries due
    rm -rf "${dir:?}"/* "$dir/.data"
    while true; do # in the background, as a trap waits for what runs in the foreground
        post register "{\"id\":\"$id\",\"address\":\"$address\"}" >"$mark.answer" &
        asked=$!
        wait $asked
        answer=$(<"$mark.answer")
        read -r word incarnation heartbeat_ms lease_ms _ <<<"$answer"
        [[ $word == welcome ]] && break
        echo "register: $answer" >&2
        sleep 1 &
        asked=$!
        wait $asked
    done
    registered=true heard=$SECONDS sequence=0 applied=0 said=
}

register_again() { # as the one that it is, with all it holds: only the coordinator is new
    answer=$(post register "{\"id\":\"$id\",\"address\":\"$address\",\"incarnation\":$incarnation}")
    applied=0 said=
    [[ $answer != "error ended "* && $answer != "error unknown_node "* ]] || register
}

reports() { # as a JSON list, whole
    local replica keyspace shard placement list=
    for replica in "${!order[@]}"; do
        read -r keyspace shard placement <<<"$replica"
        list+="{\"replica\":{\"keyspace\":\"$keyspace\",\"shard\":$shard,\"placement\":$placement},"
        list+="\"phase\":\"${phase[$replica]}\",\"epoch\":${carried[$replica]},"
        list+="\"attempts\":${tries[$replica]},\"reason\":\"${reason[$replica]}\"},"
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

now_ms() { # by a clock that nobody sets
    local uptime
    read -r uptime _ </proc/uptime
    echo $((10#${uptime/./} * 10))
}

step() { # REPLICA STATE EPOCH: does what the state asks for, or says why not
    local keyspace shard
    read -r keyspace shard _ <<<"$1"
    if [[ ${ownership[$keyspace]} != eventual && $2 == l* ]]; then
        echo "worker.sh serves keyspaces with ownership eventual: create one with --ownership eventual"
        return 1
    fi
    case $2 in
        load) load "$keyspace" "$shard" ;;
        live) load "$keyspace" "$shard" && serve "$keyspace" "$shard" "$3" ;;
        unload) other_stay "$1" || unload "$keyspace" "$shard" ;;
        unload_final) other_stay "$1" || { unload "$keyspace" "$shard" && drop "$keyspace" "$shard"; } ;;
    esac
}

carry_out() { # one replica, towards what its order says; what failed rests before it is tried again
    local role state epoch granted done said
    read -r role state epoch granted _ <<<"${order[$1]}"
    case $state in
        load) done=ready ;; live) done=serving ;; unload) done=unloaded ;; unload_final) done=dropped ;;
    esac
    [[ ${phase[$1]} == "$done" && ${carried[$1]} == "$epoch" ]] && return
    [[ $state == live && $granted != granted ]] && return
    (($(now_ms) >= ${due[$1]})) || return
    if said=$(step "$1" "$state" "$epoch" 2>&1); then
        phase[$1]=$done carried[$1]=$epoch reason[$1]= tries[$1]=0
    else
        said=${said//[^[:alnum:] .,:;()\/_=-]/ } # fit to stand in JSON
        phase[$1]=failed reason[$1]="$state failed: ${said:0:200}"
        tries[$1]=$((tries[$1] + 1))
        due[$1]=$(($(now_ms) + (tries[$1] < 7 ? 100 << tries[$1] : 10000)))
    fi
}

forget() {
    local keyspace shard
    read -r keyspace shard _ <<<"$1"
    other_stay "$1" || { unload "$keyspace" "$shard"; drop "$keyspace" "$shard"; }
    unset "order[$1]" "phase[$1]" "carried[$1]" "reason[$1]" "tries[$1]" "due[$1]"
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
                tries[$replica]=0 due[$replica]=0
                : "${phase[$replica]:=loading}" "${carried[$replica]:=0}" "${reason[$replica]:=}" ;;
            removed) forget "$a $b $c" ;;
        esac
    done <<<"$1"
    if [[ $base == 0 ]]; then # these are all: what is not named is not wanted
        for replica in "${!order[@]}"; do [[ -v named[$replica] ]] || forget "$replica"; done
    fi
    for replica in "${!order[@]}"; do carry_out "$replica"; done
}

register
while true; do
    told=$(reports)
    # Waits for news only when there is none to tell.
    wait_ms=$((lease_ms / 4))
    [[ $told == "$said" && $leaving == false ]] || wait_ms=0
    beat="{\"node\":\"$id\",\"incarnation\":$incarnation,\"sequence\":$((++sequence)),\"whole\":true,"
    beat+="\"sent_at_ms\":$(now_ms),\"applied\":$applied,\"leaving\":$leaving,\"reports\":$told}"
    if ! answer=$(post "heartbeat?wait_ms=$wait_ms" "$beat"); then
        [[ $leaving == true ]] && ((SECONDS - heard > lease_ms / 1000)) && break # nobody is there to hand over to
        sleep 0.5
    elif [[ $answer == "error ended "* ]]; then
        register
    elif [[ $answer == "error register_again "* || $answer == "error not_registered "* ]]; then
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
