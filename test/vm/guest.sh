#!/bin/bash
# Runs the tests in a virtual machine, as its first process (then there is no systemd) or as a service of systemd, and switches the
# machine off. What the tests print goes to the second serial line.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
if [ $$ = 1 ]; then
  mount -t proc proc /proc
  mount -t sysfs sys /sys
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  mkdir -p /dev/pts /dev/shm /dev/mqueue
  mount -t devpts devpts /dev/pts
  mount -t tmpfs shm /dev/shm
  mount -t mqueue mqueue /dev/mqueue
  mount -t tmpfs run /run
  mount --make-rshared /
fi
stty -F /dev/ttyS1 raw
exec > /dev/ttyS1 2>&1 < /dev/null
ip link set lo up
# Some swap, so that what pods may have of it can be seen.
fallocate -l 256M /swap && chmod 0600 /swap && mkswap -q /swap && swapon /swap
/repo/tests.sh
sync
echo o > /proc/sysrq-trigger
# The first process must not end: the machine goes off under it.
exec sleep infinity
