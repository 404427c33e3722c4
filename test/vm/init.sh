#!/bin/busybox sh
# The first process of a virtual machine: finds the disks and hands over to what the kernel's command line names in podplane.init.
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sys /sys
$bb mount -t devtmpfs dev /dev
while read -r module; do
  $bb insmod "/modules/$module"
done < /modules/order
$bb mount -t ext4 /dev/vda /disk && $bb mount -t ext4 -o ro /dev/vdb /disk/repo || exec $bb sh
next=/sbin/init
for word in $($bb cat /proc/cmdline); do
  case $word in podplane.init=*) next=${word#podplane.init=} ;; esac
done
$bb umount /proc /sys
$bb mount -o move /dev /disk/dev
exec $bb switch_root /disk "$next"
