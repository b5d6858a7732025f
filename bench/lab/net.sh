#!/bin/bash
# A network of slow cables on one machine: a namespace for each node, a veth pair from each to a hub namespace,
# rates by tbf in both directions. The hub is a bridge, or lab_cable when there is a delay. Needs root.
#
#   net.sh up TAG NODES [--rate 1gbit] [--burst 1mbit] [--delay-us D] [--jitter-us J] [--seed S] [--cable PROGRAM]
#                   [--congestion reno] [--queue 50ms] [--gang M --inside RATE] [--cards M]
#   net.sh exec TAG NODE COMMAND...     in the node's namespace, UCX on its one interface over TCP
#   net.sh address TAG NODE [CARD]
#   net.sh link TAG NODE up|down        the hub's end of its cable: down is silence, not an error
#   net.sh rate TAG NODE RATE [BURST [QUEUE]]
#   net.sh can                          exit status 0: this machine can do all of it; else says what is missing
#   net.sh down TAG                     ends what still runs there, removes the namespaces
#
# Node i has the address 10.77.0.(i+1) on its interface eth0. TAG tells laboratories of one machine apart.
# With --cards a node has so many: card t is eth<t> at 10.77.t.(i+1), on a network of its own that is as the first.
# With --gang each M nodes in a row have a second network among themselves, interface eth1, by which they reach each other
# at the same addresses; eth0 leads to all others.
set -eu
BURST=1mbit QUEUE=50ms

fail() { echo "net.sh: $*" >&2; exit 1; }
hub() { ip -n "$1-hub" "${@:2}"; }
state() { echo "/run/sluice-lab-$1"; }

shape() { # namespace interface rate burst queue
    tc -n "$1" qdisc replace dev "$2" root tbf rate "$3" burst "$4" latency "$5"
}

add_node() { # tag node rate burst queue
    local ns="$1-$2"
    ip netns add "$ns"
    ip netns exec "$ns" sysctl -qw net.ipv6.conf.default.disable_ipv6=1 2>/dev/null || true
    # BBR paces what is sent by what it has measured, so messages with pauses between them would crawl.
    ip netns exec "$ns" sysctl -qw net.ipv4.tcp_congestion_control="$congestion" \
        net.ipv4.tcp_slow_start_after_idle=0 || fail "no congestion control $congestion in this kernel"
    ip -n "$ns" link set lo up
    add_card "$1" "$2" 0 "$3" "$4" "$5"
}

port() { # node card: the hub's end of its cable
    [ "$2" = 0 ] && echo "p$1" || echo "p$1x$2"
}

add_card() { # tag node card rate burst queue
    local ns="$1-$2" end; end=$(port "$2" "$3")
    ip -n "$1-hub" link add "$end" type veth peer name "eth$3" netns "$ns"
    ip -n "$ns" addr add "10.77.$3.$(($2 + 1))/24" dev "eth$3"
    ip -n "$ns" link set "eth$3" up
    hub "$1" link set "$end" up
    [ "$4" = none ] && return
    shape "$ns" "eth$3" "$4" "$5" "$6"
    shape "$1-hub" "$end" "$4" "$5" "$6"
}

# A node's end of its gang's network, and the way to the others of the gang.
add_inside() { # tag node gang rate burst queue
    local ns="$1-$2" first=$(($2 / $3 * $3)) i
    hub "$1" link show "in$first" >/dev/null 2>&1 || hub "$1" link add "in$first" type bridge
    hub "$1" link set "in$first" up
    ip -n "$1-hub" link add "q$2" type veth peer name eth1 netns "$ns"
    ip -n "$ns" link set eth1 up
    hub "$1" link set "q$2" master "in$first" up
    for ((i = first; i < first + $3; i++)); do
        [ $i = "$2" ] || ip -n "$ns" route add "10.77.0.$((i + 1))/32" dev eth1 src "10.77.0.$(($2 + 1))"
    done
    [ "$4" = none ] && return
    shape "$ns" eth1 "$4" "$5" "$6"
    shape "$1-hub" "q$2" "$4" "$5" "$6"
}

up() { # tag nodes options...
    local tag=$1 nodes=$2 rate=none burst=$BURST delay=0 jitter=0 seed=1 cable="" congestion=reno gang=0 inside=none
    local cards=1 queue=$QUEUE ports i t
    shift 2
    while [ $# -gt 1 ]; do
        case $1 in
        --rate) rate=$2 ;; --burst) burst=$2 ;; --delay-us) delay=$2 ;; --jitter-us) jitter=$2 ;;
        --seed) seed=$2 ;; --cable) cable=$2 ;; --congestion) congestion=$2 ;; --gang) gang=$2 ;; --inside) inside=$2 ;;
        --cards) cards=$2 ;; --queue) queue=$2 ;;
        *) fail "unknown option $1" ;;
        esac
        shift 2
    done
    [[ $nodes =~ ^[0-9]+$ ]] && [ "$nodes" -ge 2 ] && [ "$nodes" -le 64 ] || fail "$nodes nodes, 2 to 64 expected"
    [[ $cards =~ ^[1-8]$ ]] || fail "$cards cards, 1 to 8 expected"
    [ "$cards" = 1 ] || [ "$gang" -lt 2 ] || fail "--cards and --gang: both have eth1"
    ip netns add "$tag-hub" || fail "is laboratory $tag up already?"
    ip netns exec "$tag-hub" sysctl -qw net.ipv6.conf.default.disable_ipv6=1 2>/dev/null || true
    for ((i = 0; i < nodes; i++)); do
        add_node "$tag" $i "$rate" "$burst" "$queue"
        [ "$gang" -lt 2 ] || add_inside "$tag" $i "$gang" "$inside" "$burst" "$queue"
        for ((t = 1; t < cards; t++)); do add_card "$tag" $i $t "$rate" "$burst" "$queue"; done
    done
    for ((t = 0; t < cards; t++)); do
        ports=()
        for ((i = 0; i < nodes; i++)); do ports+=("$(port $i $t)"); done
        connect "$tag" $t "$delay" "$jitter" "$seed" "$cable" "${ports[@]}"
    done
    await_links "$tag" "$nodes"
}

connect() { # tag card delay jitter seed cable ports...
    local i log
    if [ "$3" = 0 ] && [ "$4" = 0 ]; then
        hub "$1" link add "br$2" type bridge
        for i in "${@:7}"; do hub "$1" link set "$i" master "br$2"; done
        hub "$1" link set "br$2" up
        return
    fi
    [ -x "$6" ] || fail "a delay needs --cable build/lab_cable"
    log=$(state "$1").cable$2
    : >"$log"
    ip netns exec "$1-hub" "$6" --delay-us "$3" --jitter-us "$4" --seed "$5" "${@:7}" >"$log" 2>&1 </dev/null &
    for ((i = 0; i < 100; i++)); do grep -q ready "$log" && break; sleep 0.02; done
    grep -q ready "$log" || fail "lab_cable: $(cat "$log")"
}

await_links() { # tag nodes: the kernel notices a carrier a moment later, and UCX needs it
    local i tries
    for ((i = 0; i < $2; i++)); do
        for ((tries = 0; tries < 100; tries++)); do
            ip -n "$1-$i" -br link show eth0 | grep -q ' UP ' && break
            sleep 0.02
        done
        [ $tries -lt 100 ] || fail "node $i has no link"
    done
}

down() { # tag
    local ns pids
    for ns in $(ip netns list | awk '{print $1}' | grep -E "^$1-(hub|[0-9]+)$" || true); do
        pids=$(ip netns pids "$ns")
        [ -z "$pids" ] || kill $pids 2>/dev/null || true
        ip netns del "$ns"
    done
    rm -f "$(state "$1").cable"*
}

can() {
    local tag="lab-can-$$"
    [ "$(id -u)" = 0 ] || { echo "needs root"; return 1; }
    command -v ip >/dev/null && command -v tc >/dev/null || { echo "needs iproute2 (ip, tc)"; return 1; }
    ip netns add $tag 2>/dev/null || { echo "network namespaces are not permitted"; return 1; }
    local why=""
    ip -n $tag link add v0 type veth peer name v1 2>/dev/null || why="no veth in this kernel"
    [ -n "$why" ] || ip -n $tag link add b0 type bridge 2>/dev/null || why="no bridge in this kernel"
    [ -n "$why" ] || tc -n $tag qdisc add dev v0 root tbf rate 1gbit burst 1mbit latency 50ms 2>/dev/null ||
        why="no tbf in this kernel"
    ip netns del $tag
    [ -z "$why" ] || { echo "$why"; return 1; }
}

[ $# -ge 1 ] || { sed -n '2,18p' "$0"; exit 2; }
verb=$1
shift
case $verb in
can) can ;;
up) [ $# -ge 2 ] || fail "up TAG NODES"; up "$@" ;;
down) [ $# -eq 1 ] || fail "down TAG"; down "$1" ;;
exec)
    [ $# -ge 3 ] || fail "exec TAG NODE COMMAND..."
    exec ip netns exec "$1-$2" env UCX_TLS=tcp UCX_NET_DEVICES=eth0 "${@:3}" ;;
address) echo "10.77.${3:-0}.$(($2 + 1))" ;;
link) hub "$1" link set "p$2" "$3" ;;
rate)
    shape "$1-$2" eth0 "$3" "${4:-$BURST}" "${5:-$QUEUE}"
    shape "$1-hub" "p$2" "$3" "${4:-$BURST}" "${5:-$QUEUE}" ;;
*) fail "unknown command $verb" ;;
esac
