#!/usr/bin/busybox sh
# The first process of the machines that `cargo xtask test swap` starts. The kernel's command line
# says what control groups there are (none, v1 or v2), and where the tests take the binary and their
# files to be. It answers on the console, a line for each check: `ok NAME` or `failed NAME`.

/usr/bin/busybox --install -s /usr/bin 2> /dev/null
export PATH=/usr/bin RUST_TEST_THREADS=1
mkdir -p /proc /sys /dev /tmp /run /etc
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
ln -s usr/bin /bin
echo 'root:x:0:0::/:' > /etc/passwd
mode=$1 binary=$2 files=$3

check() {
    local name="$mode: $1"
    shift
    if "$@" > /tmp/out 2>&1; then
        echo "ok $name"
    else
        cat /tmp/out
        echo "failed $name"
    fi
}

load_modules() {
    for module in /modules/*; do
        insmod "$module" || return 1
    done
}

wait_for() {
    local tries=0
    until [ -e "$1" ]; do
        [ $((tries += 1)) -lt 600 ] || return 1
        sleep 0.1
    done
}

# Swap files lie on a disk.
make_disk() {
    wait_for /dev/nvme0n1 && mkfs.ext4 -q -b 4096 /dev/nvme0n1 &&
        mkdir -p "$files" "${binary%/*}" && mount -t ext4 /dev/nvme0n1 "$files" &&
        ln -s /usr/bin/nyx "$binary"
}

make_groups() {
    case $mode in
    v1)
        mount -t tmpfs tmpfs /sys/fs/cgroup && mkdir /sys/fs/cgroup/memory &&
            mount -t cgroup -o memory memory /sys/fs/cgroup/memory
        ;;
    *)
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        ;;
    esac
}

# CODE WORDS COMMAND: it ends with that code and says that.
refuses() {
    local code=$1 words=$2 is
    shift 2
    "$@" > /tmp/told 2>&1
    is=$?
    cat /tmp/told
    [ "$is" = "$code" ] && grep -q "$words" /tmp/told
}

# A test that skips has shown nothing. This kernel's userfaultfd is too old for engine uffd, and the
# disk is no virtual one that says that it rotates.
test_here() {
    swap_tests --nocapture --exact "$1" > /tmp/test 2>&1
    cat /tmp/test
    grep -q '^test result: ok. 1 passed' /tmp/test && ! grep '^skipped' /tmp/test |
        grep -qv -e 'no userfaultfd' -e 'no virtual disk'
}

# 48 MiB that are held, and read again at the end.
text() {
    yes 'less memory than it uses' | dd bs=48M count=1 iflag=fullblock 2> /dev/null
}

# The reclaimer goes with its launcher; then the program grows beyond its limit.
without_launcher() {
    local limit=/tmp/limit expected used
    expected=$(text | md5sum)
    cat > /tmp/grow << 'END'
touch /tmp/ready
until [ -e /tmp/go ]; do sleep 0.1; done
yes 'less memory than it uses' | dd bs=48M count=1 iflag=fullblock | {
    sleep 1
    md5sum
} > /tmp/sum
mv /tmp/sum /tmp/done
END
    nyx swap run --memory 32M --device "$files/swap" --device-size 256M --oom kill \
        -- sh /tmp/grow &
    wait_for /tmp/ready && kill -9 $! && touch /tmp/go && wait_for /tmp/done &&
        [ "$(cat /tmp/done)" = "$expected" ] || return 1
    nyx swap run --memory 64M --device zram --device-size 64M -- true
    nyx swap status | grep -q 'no program' && ! grep -q "$files" /proc/swaps
}

on_zram() {
    local expected
    expected=$(text | md5sum)
    nyx swap run --memory 32M --device zram --device-size 256M --report /tmp/report \
        -- sh -c "yes 'less memory than it uses' | dd bs=48M count=1 iflag=fullblock | md5sum" \
        > /tmp/sum && cat /tmp/report && [ "$(cat /tmp/sum)" = "$expected" ] &&
        ! grep -q '"swapped_peak_bytes": 0,' /tmp/report && ! grep -q zram /proc/swaps
}

# Stalls are told by version 2 alone.
auto() {
    local run="nyx swap run --memory auto --max-slowdown 50% --device zram --device-size 256M"
    case $mode in
    v1) refuses 69 'stalls are told by cgroup v2' $run -- true ;;
    v2)
        local script="yes 'less memory' | dd bs=48M count=1 iflag=fullblock | (sleep 5; md5sum)"
        $run --report /tmp/report -- sh -c "$script" &&
            cat /tmp/report && grep -q '"slowdown": [0-9]' /tmp/report &&
            grep -q '"limit_bytes": [0-9]' /tmp/report
        ;;
    esac
}

check modules load_modules
check disk make_disk
check groups make_groups
if [ "$mode" = none ]; then
    why='no control group limits memory here'
    check 'run refuses' refuses 69 "$why" nyx swap run --memory 64M --device zram -- true
    check 'attach refuses' refuses 69 "$why" nyx swap attach 1 --memory 64M
    check 'nothing is left' refuses 0 'no program runs' nyx swap status
    check 'swap is off' [ "$(wc -l < /proc/swaps)" -le 1 ]
else
    check 'limit without a launcher' without_launcher
    check zram on_zram
    check auto auto
    # Those that others run are none of their own. That one takes programs that are as slow as here
    # for ones that stand still.
    {
        swap_tests --list --ignored
        echo 'ahead::what_a_scan_has_passed_leaves_and_less_is_read_in_again: test'
    } | sed -n 's/: test$//p' > /tmp/not_here
    swap_tests --list | sed -n 's/: test$//p' | grep -vxF -f /tmp/not_here > /tmp/list
    for name in $(cat /tmp/list); do
        check "$name" test_here "$name"
    done
fi
poweroff -f
