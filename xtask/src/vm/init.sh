#!/usr/bin/busybox sh
# The first process of the machine that `cargo xtask test vm` starts. The kernel's command line says
# what it is to do: first, again or last; a seed; and FILESYSTEM/INDEX=ACKNOWLEDGED of each writer.
# It answers on the console, a line for each check: `ok NAME` or `failed NAME`.

/usr/bin/busybox --install -s /usr/bin
export PATH=/usr/bin RUST_TEST_THREADS=1
mkdir -p /proc /sys /dev /tmp /mnt/ext4 /mnt/xfs
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev

check() {
    local name=$1
    shift
    if "$@"; then echo "ok $name"; else echo "failed $name"; fi
}

# Of its queues the disk gives one to those who poll.
load_modules() {
    for module in /modules/*; do
        case $module in
        *-nvme.ko) insmod "$module" poll_queues=1 ;;
        *) insmod "$module" ;;
        esac || return 1
    done
}

# The kernel looks at devices beside everything else.
wait_for() {
    local tries=0
    until [ -e "$1" ]; do
        [ $((tries += 1)) -lt 100 ] || return 1
        sleep 0.1
    done
}

# What `ndctl create-namespace -f -e namespaceN.0 -m fsdax -M mem` does: room for the kernel's page
# structures, without which there is no direct access.
make_fsdax() {
    local bus=/sys/bus/nd namespace=namespace$1.0 pfn=pfn$1.0
    wait_for "$bus/drivers/nd_pmem/$namespace" &&
        echo "$namespace" > "$bus/drivers/nd_pmem/unbind" &&
        echo ram > "$bus/devices/$pfn/mode" &&
        cat /proc/sys/kernel/random/uuid > "$bus/devices/$pfn/uuid" &&
        echo "$namespace" > "$bus/devices/$pfn/namespace" &&
        echo "$pfn" > "$bus/drivers/nd_pmem/bind"
}

make_filesystems() {
    make_fsdax 0 && make_fsdax 1 && wait_for /dev/pmem0 && wait_for /dev/pmem1 &&
        mkfs.ext4 -q -b 4096 /dev/pmem0 && mkfs.xfs -q -m reflink=0 /dev/pmem1
}

# With dax=always or dax=never. Where there can be none XFS mounts without it: /proc/mounts tells.
mount_all() {
    wait_for /dev/pmem0 && wait_for /dev/pmem1 &&
        mount -t ext4 -o "dax=$1" /dev/pmem0 /mnt/ext4 &&
        mount -t xfs -o "dax=$1" /dev/pmem1 /mnt/xfs &&
        [ "$(grep -c "dax=$1" /proc/mounts)" = 2 ]
}

unmount_all() {
    umount /mnt/ext4 && umount /mnt/xfs
}

# power_cut COMMAND NAME=ACKNOWLEDGED [OPTION...]
power_cut() {
    local command=$1 writer=${2%=*} acknowledged=${2#*=}
    shift 2
    /usr/bin/power_cut "$command" "/mnt/$writer" --index "${writer#*/}" --seed "$seed" \
        --acknowledged "$acknowledged" "$@"
}

# One test of nyx-media; a name that is none of its would pass as no test at all.
media_test() {
    /usr/bin/media_tests --include-ignored --nocapture --exact "$1" | tee /tmp/out
    grep -q '^test result: ok. 1 passed' /tmp/out
}

# Before there are file systems: an NVDIMM's block device has no poll queue, the disk has one.
polled_rings() {
    local tests=queue::tests::polled
    wait_for /dev/pmem0 && wait_for /dev/nvme0n1
    export NYX_UNPOLLED_DEVICE=/dev/pmem0 NYX_POLLED_DEVICE=/dev/nvme0n1
    check 'fallback without poll queues' \
        media_test "$tests::a_device_without_poll_queues_falls_back_to_events"
    check 'polled ring' media_test "$tests::a_device_with_poll_queues_is_polled"
    check 'polled requests' media_test "$tests::polled_requests_agree_with_bytes_in_memory"
}

# Direct access where there is some, a refusal where there is none; then indexes that are closed.
first() {
    local refused=mapped::tests::direct_access_is_refused_where_there_is_none
    local kept=mapped::tests::direct_access_keeps_bytes_and_says_how_they_were_left
    polled_rings
    check filesystems make_filesystems
    check 'mounts without DAX' mount_all never
    for directory in /tmp /mnt/ext4 /mnt/xfs; do
        export NYX_NO_DAX_DIR=$directory
        check "no DAX at $directory" media_test "$refused"
    done
    check 'unmounts' unmount_all
    check 'mounts with DAX' mount_all always
    for directory in /mnt/ext4 /mnt/xfs; do
        export NYX_DAX_DIR=$directory
        check "DAX at $directory" media_test "$kept"
    done
    for writer in "$@"; do
        check "fill ${writer%=*}" power_cut fill "$writer" --operations 1000 --every 1000
        check "check ${writer%=*}" power_cut check "${writer%=*}=1000"
    done
}

check modules load_modules
mode=$1 seed=$2
shift 2
case $mode in
first)
    first "$@"
    ;;
*)
    check 'mounts with DAX' mount_all always
    for writer in "$@"; do
        check "check ${writer%=*}" power_cut check "$writer"
    done
    ;;
esac
if [ "$mode" = last ]; then
    check 'unmounts' unmount_all
    poweroff -f
fi
echo 'ok writers'
for writer in "$@"; do
    # It ends by itself only where something is wrong.
    (power_cut fill "$writer"; echo "failed fill ${writer%=*}") &
done
wait
poweroff -f
