#!/bin/sh
# The image's layer over another image, by a real runtime of containers with its default profile of system calls: image.sh PACKAGES ROOT.
# ROOT is a clean root, which becomes the other image. Nothing is fetched, and all that podman keeps is removed at the end.
set -eu
packages=$1 root=$2
here=$(cd "$(dirname "$0")" && pwd)
store=$(mktemp -d)
trap 'rm -rf "$store"' EXIT

# A network in which there is nothing but the loopback interface.
cat > "$store/podman" << EOF
#!/bin/sh
exec timeout 120 unshare --net sh -c 'ip link set lo up && exec "\$@"' - /usr/bin/podman --root "$store/images" --runroot "$store/run" \
    --runtime runc --storage-driver overlay --cgroup-manager cgroupfs --events-backend none "\$@"
EOF
chmod +x "$store/podman"
podman=$store/podman

# Its name is what the Containerfile expects.
"$podman" load --quiet --input "$packages"/ferroce-[0-9]*-"$(uname -m)"-linux-gnu.oci.tar > /dev/null
tar -C "$root" --exclude=./proc --exclude=./sys --exclude=./dev -c . | "$podman" import --quiet - localhost/base > /dev/null
"$podman" build --quiet --isolation chroot --network host --build-arg BASE=localhost/base \
    --tag localhost/with-ferroce --file "$here/../Containerfile" "$here" > /dev/null
container() {
    "$podman" run --rm --network host --ulimit nofile=1024:4096 --ulimit nproc=1000:1000 --user 1000 --read-only --tmpfs /tmp \
        --cap-drop all --security-opt no-new-privileges --volume "$here:/test:ro" "$@"
}
container localhost/with-ferroce ibv_devices | grep -q ferroce0
container --entrypoint sh localhost/with-ferroce -euc '
    for line in "Seccomp:.2" "NoNewPrivs:.1" "CapBnd:.0*"; do
        grep -q "^$line$" /proc/self/status || { echo "this is not confined: no $line"; exit 1; }
    done
    sh -eu /test/use.sh ferroce'
echo "image: loaded, put over another, used in a container"
