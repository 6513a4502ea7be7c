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
# DIR is new, or empty, or the one that this node had before. What is in DIR/.data is kept over restarts, named to the
# coordinator, and deleted only when an order or a permission of the coordinator says so.
#
# For keyspaces with ownership `eventual`: the server beside it knows nothing of the lease, so for `exclusive`
# ones it reports that it cannot. Coordinators answer `accept: text/plain` with one order a line; see
# docs/src/protocols/worker-http.md.
set -u
if (($# != 4)); then
    echo "usage: worker.sh COORDINATOR_URL NODE_ID ADDRESS DIR" >&2
    exit 2
fi
coordinator=$1 id=$2 address=$3 dir=$4 mark=$4/.partage-worker data=$4/.data

if ! mkdir -p "$dir"; then
    exit 1
elif [[ -e $mark ]]; then
    if [[ $(<"$mark") != "$id" ]]; then
        echo "worker.sh: $dir belongs to node $(<"$mark"): give node $id a directory of its own" >&2
        exit 1
    fi
elif [[ -n $(ls -A "$dir") ]]; then
    echo "worker.sh: $dir is not empty, and nothing says that it is of this worker, which deletes in its directory" \
        "what the coordinator no longer needs: give a new or an empty one" >&2
    exit 1
elif ! echo "$id" >"$mark"; then
    exit 1
fi

# KEYSPACE SHARD PLACEMENT EPOCH; the data of each placement has a file of its own, which also names its epoch.
load()   { mkdir -p "$dir/$1" "$data/$1/$2" && echo "$4" >"$data/$1/$2/.$3" && mv "$data/$1/$2/.$3" "$data/$1/$2/$3"; }
serve()  { load "$@" && echo "$id epoch $4" >"$dir/$1/.$2" && mv "$dir/$1/.$2" "$dir/$1/$2"; }
unload() { rm -f "$dir/$1/$2"; }
drop()   { rm -f "$data/$1/$2/$3" && { rmdir "$data/$1/$2" 2>/dev/null || true; }; }

# By "KEYSPACE SHARD PLACEMENT"; ownership by keyspace. Withdrawn = no order names it: not served, and its data kept.
declare -A order phase carried reason tries due withdrawn ownership
leaving=false registered=false asked= cluster=
[[ -e $mark.cluster ]] && cluster=$(<"$mark.cluster")
# Who is not registered serves nothing, so there is nothing to hand over.
trap 'leaving=true; [[ $registered == true ]] || { kill $asked 2>/dev/null; exit 0; }' TERM

post() { # PATH BODY; answers in lines. The body has the token, which the list of processes must not show
    curl --silent --show-error --max-time 10 -H 'accept: text/plain' -H 'content-type: application/json' \
        --data-binary @- "$coordinator/v1/worker/$1" <<<"$2"
}

withdraw() { # REPLICA: no order names it any more
    withdrawn[$1]=1 tries[$1]=0 due[$1]=0
}

find_stored() { # what an earlier process has left: not served until it is ordered again
    local file replica epoch
    for file in "$data"/*/*/*; do
        [[ -e $file ]] || continue
        replica=${file#"$data"/} epoch=$(<"$file")
        [[ $epoch =~ ^[0-9]+$ ]] || epoch=0 # cut off when it was written: the coordinator decides
        keep "${replica//\// }" "$epoch"
    done
}

keep() { # REPLICA EPOCH
    local keyspace shard
    read -r keyspace shard _ <<<"$1"
    unload "$keyspace" "$shard"
    order[$1]="follower unload $2 waiting" phase[$1]=kept carried[$1]=$2 reason[$1]=
    withdraw "$1"
}

is_other_cluster() { # CLUSTER ANSWER: whether it is not the one that this worker is of, nor goes on from it
    [[ -n $cluster && $1 != "$cluster" && $'\n'$2$'\n' != *$'\n'"continues $cluster"$'\n'* ]] || return
    echo "the coordinator is of cluster $1, this worker of $cluster: it is not obeyed, and all data is kept" >&2
}

register() { # as a new process, which serves nothing and keeps what it has
    local word= answer named replica
    registered=false
    if [[ $leaving == true ]]; then exit 0; fi
    for replica in "${!order[@]}"; do withdraw "$replica" && carry_out "$replica"; done
    named=${cluster:+,\"cluster\":\"$cluster\"}
    while true; do # in the background, as a trap waits for what runs in the foreground
        (umask 077 && rm -f "$mark.answer" && post register "{\"id\":\"$id\",\"address\":\"$address\"$named}" >"$mark.answer") &
        asked=$!
        wait $asked
        answer=$(<"$mark.answer")
        rm -f "$mark.answer"
        read -r word incarnation heartbeat_ms lease_ms theirs <<<"$answer"
        [[ $word == welcome ]] && ! is_other_cluster "$theirs" "$answer" && break
        echo "register: $answer" >&2
        sleep 1 &
        asked=$!
        wait $asked
    done
    token=$(sed -n 's/^token //p' <<<"$answer") # proves that this is the process that registered
    cluster=$theirs
    echo "$cluster" >"$mark.cluster"
    registered=true heard=$SECONDS sequence=0 applied=0 said=
}

register_again() { # as the one that it is, with all it holds: only the coordinator is new
    local who="\"id\":\"$id\",\"address\":\"$address\",\"incarnation\":$incarnation,\"token\":\"$token\",\"cluster\":\"$cluster\""
    answer=$(post register "{$who}")
    applied=0 said=
    [[ ! $answer =~ ^error\ (ended|unknown_node|wrong_token)\  ]] || register
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

other_stay() { # whether the shard is served here under another placement: it came back before the former one had gone
    local other
    for other in "${!order[@]}"; do
        [[ $other == "${1% *} "* && $other != "$1" && ${phase[$other]} == serving ]] && return
    done
    return 1
}

now_ms() { # by a clock that nobody sets
    local uptime
    read -r uptime _ </proc/uptime
    echo $((10#${uptime/./} * 10))
}

step() { # REPLICA STATE EPOCH: does what the state asks for, or says why not
    local keyspace shard placement
    read -r keyspace shard placement <<<"$1"
    if [[ ${ownership[$keyspace]-} != eventual && $2 == l* ]]; then
        echo "worker.sh serves keyspaces with ownership eventual: create one with --ownership eventual"
        return 1
    fi
    case $2 in
        load) load "$keyspace" "$shard" "$placement" "$3" ;;
        live) serve "$keyspace" "$shard" "$placement" "$3" ;;
        unload | kept) other_stay "$1" || unload "$keyspace" "$shard" ;;
        unload_final) { other_stay "$1" || unload "$keyspace" "$shard"; } && drop "$keyspace" "$shard" "$placement" ;;
    esac
}

carry_out() { # one replica, towards what its order says; what failed rests before it is tried again
    local role state epoch granted done said
    read -r role state epoch granted _ <<<"${order[$1]}"
    if [[ -v withdrawn[$1] && $state != unload_final ]]; then state=kept; fi
    case $state in
        load) done=ready ;; live) done=serving ;; unload) done=unloaded ;;
        unload_final) done=dropped ;; kept) done=kept ;;
    esac
    [[ ${phase[$1]} == "$done" && ${carried[$1]} == "$epoch" ]] && return
    [[ ($state == live || $state == load && ${phase[$1]} == loading) && $granted != granted ]] && return
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

permit() { # REPLICA EPOCH: delete it, if no order names it and its data is not of a later epoch
    local role epoch rest
    [[ -v withdrawn[$1] ]] || return
    read -r role _ epoch rest <<<"${order[$1]}"
    (($2 >= epoch && $2 >= ${carried[$1]})) || return
    order[$1]="$role unload_final $epoch $rest" tries[$1]=0 due[$1]=0
}

forget_dropped() { # what is deleted, was reported so, and is not ordered any more
    local replica
    for replica in "${!withdrawn[@]}"; do
        [[ ${phase[$replica]} == dropped ]] || continue
        unset "order[$replica]" "phase[$replica]" "carried[$replica]" "reason[$replica]" "tries[$replica]" \
            "due[$replica]" "withdrawn[$replica]"
    done
}

take() { # the answer to a heartbeat
    local word a b c rest replica base=
    local -A named=()
    may_go=false
    forget_dropped
    while read -r word a b c rest; do
        case $word in
            version) applied=$a base=$b ;;
            may_go) may_go=true ;;
            keyspace) ownership[$a]=$b ;;
            order)
                replica="$a $b $c" named["$a $b $c"]=1
                if [[ -v withdrawn[$replica] ]]; then # taken back: loaded again before it is served
                    unset "withdrawn[$replica]"
                    phase[$replica]=loading
                fi
                order[$replica]=$rest
                tries[$replica]=0 due[$replica]=0
                : "${phase[$replica]:=loading}" "${carried[$replica]:=0}" "${reason[$replica]:=}" ;;
            removed)
                replica="$a $b $c"
                [[ ! -v order[$replica] ]] || withdraw "$replica" ;;
            drop) permit "$a $b $c" "${rest#* }" ;;
        esac
    done <<<"$1"
    if [[ $base == 0 ]]; then # these are all: what is not named is not wanted
        for replica in "${!order[@]}"; do
            [[ -v named[$replica] || -v withdrawn[$replica] ]] || withdraw "$replica"
        done
    fi
    for replica in "${!order[@]}"; do carry_out "$replica"; done
}

cluster_of() { # ANSWER
    local word rest
    while read -r word rest; do [[ $word != cluster ]] || echo "$rest"; done <<<"$1"
}

find_stored
register
while true; do
    told=$(reports)
    # Waits for news only when there is none to tell.
    wait_ms=$((lease_ms / 4))
    [[ $told == "$said" && $leaving == false ]] || wait_ms=0
    beat="{\"node\":\"$id\",\"incarnation\":$incarnation,\"token\":\"$token\",\"sequence\":$((++sequence)),\"whole\":true,"
    beat+="\"sent_at_ms\":$(now_ms),\"applied\":$applied,\"leaving\":$leaving,\"reports\":$told}"
    if ! answer=$(post "heartbeat?wait_ms=$wait_ms" "$beat"); then
        [[ $leaving == true ]] && ((SECONDS - heard > lease_ms / 1000)) && break # nobody is there to hand over to
        sleep 0.5
    elif [[ $answer =~ ^error\ (ended|wrong_token)\  ]]; then
        register
    elif [[ $answer == "error register_again "* || $answer == "error not_registered "* ]]; then
        register_again
        sleep 0.1
    elif [[ $answer == error* ]]; then
        echo "heartbeat: $answer" >&2
        sleep 0.5
    elif is_other_cluster "$(cluster_of "$answer")" ""; then
        sleep 0.5
    else
        said=$told heard=$SECONDS
        take "$answer"
        [[ $may_go == true ]] && break
        ((wait_ms > 0)) || sleep 0.05
    fi
done
post leave "{\"node\":\"$id\",\"incarnation\":$incarnation,\"token\":\"$token\"}"
left=$?
sleep 0.5 # clients on their way are still answered
exit $left
