#!/bin/sh
# Uses an installation as its user does: use.sh COMMAND, the `ferroce` to use.
set -eu
ferroce=$1

"$ferroce" --version
"$ferroce" doctor > /tmp/doctor.txt || { cat /tmp/doctor.txt; exit 1; }
"$ferroce" run ls /sys/class/infiniband | grep -q ferroce0
"$ferroce" run rdma link show | grep -q "link ferroce0/1 state ACTIVE"
# It asks realpath(3), of which older systems have two, where it is itself.
"$ferroce" run "$ferroce" doctor > /tmp/doctor.txt || { cat /tmp/doctor.txt; exit 1; }
"$ferroce" run ibv_devices | grep -q ferroce0
# It asks for a name of the private version of its release, and so do vendors' libraries, which perftest is linked to.
"$ferroce" run ibv_devinfo | grep -q PORT_ACTIVE
for fabric in A_FABRIC=best FERROCE_FABRIC=udp; do
    for program in "ibv_rc_pingpong -g 1 -c" "ib_send_bw -F -n 1000" "ib_write_bw -F -n 1000" "ib_send_lat -F -n 1000"; do
        # In a variable are words.
        timeout 30 env "$fabric" "$ferroce" run $program > /tmp/server.txt 2>&1 &
        server=$!
        sh "$(dirname "$0")/listening.sh" || { cat /tmp/server.txt; exit 1; }
        timeout 30 env "$fabric" "$ferroce" run $program 127.0.0.1 > /tmp/client.txt 2>&1 ||
            { cat /tmp/client.txt /tmp/server.txt; exit 1; }
        wait $server
        grep -Eq "1000 iters|^ (2|65536) +1000 " /tmp/client.txt || { cat /tmp/client.txt; exit 1; }
    done
done
