#!/usr/bin/env bash
# Makes what the virtual machines of test/vm boot, from Debian's packages: a kernel, an initramfs with the few modules that it takes to
# find the disk, and a disk with a minimal Debian that has systemd. Kept in .local/vm, so that a second run is quick.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=$root/.local/vm
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
packages=systemd,systemd-sysv,dbus,iptables,iproute2,kmod,ca-certificates

want=$(cat "${BASH_SOURCE[0]}" "$root/test/vm/init.sh" "$root/test/vm/podplane-test.service" /bin/busybox | sha256sum)
if [ "$(cat "$out/stamp" 2>/dev/null || true)" = "$want" ]; then
  exit 0
fi
echo "making the disk of virtual machines"
started=$SECONDS
mkdir -p "$out"
work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
log=$work/log
quiet() { "$@" > "$log" 2>&1 </dev/null || { echo "$* failed:" >&2; tail -n 20 "$log" >&2; return 1; }; }

disk=$work/disk
quiet debootstrap --variant=minbase --include=$packages bookworm "$disk" "$mirror"
# The kernel is only unpacked: installing it would make an initramfs with all that it does not take.
kernel=$(chroot "$disk" apt-cache depends linux-image-cloud-amd64 | awk '/Depends:/ {print $2; exit}')
(cd "$disk/tmp" && quiet chroot "$disk" sh -c "cd /tmp && apt-get -q -o APT::Sandbox::User=root download $kernel")
quiet dpkg-deb -x "$disk/tmp/$kernel"_*.deb "$work/kernel"
version=${kernel#linux-image-}
cp "$work/kernel/boot/vmlinuz-$version" "$work/vmlinuz"
mkdir -p "$disk/usr/lib/modules"
mv "$work/kernel/lib/modules/$version" "$disk/usr/lib/modules/"
quiet chroot "$disk" /sbin/depmod "$version"

initramfs=$work/initramfs
mkdir -p "$initramfs"/{bin,modules,proc,sys,dev,disk}
cp /bin/busybox "$initramfs/bin/"
cp "$root/test/vm/init.sh" "$initramfs/init"
chmod 0755 "$initramfs/init"
: > "$initramfs/modules/order"
for module in virtio_pci virtio_blk; do
  # As modprobe would load them: what a module needs comes first.
  chroot "$disk" /sbin/modprobe -S "$version" -D "$module" | awk '$1 == "insmod" {print $2}' | while read -r file; do
    cp "$disk$file" "$initramfs/modules/"
    grep -qx "$(basename "$file")" "$initramfs/modules/order" || basename "$file" >> "$initramfs/modules/order"
  done
done
(cd "$initramfs" && find . | busybox cpio -o -H newc 2>> "$log" | gzip -1 > "$work/initramfs.gz")

rm -rf "$disk"/tmp/*.deb "$disk"/var/cache/apt/archives/*.deb "$disk"/var/lib/apt/lists/*
mkdir -p "$disk/repo"
echo podplane-vm > "$disk/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 podplane-vm\n' > "$disk/etc/hosts"
: > "$disk/etc/resolv.conf"
: > "$disk/etc/machine-id"
cp "$root/test/vm/podplane-test.service" "$disk/etc/systemd/system/"
# What asks for a login or looks after the network only costs time here.
for unit in getty.target apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer systemd-timesyncd.service; do
  ln -sf /dev/null "$disk/etc/systemd/system/$unit"
done
truncate -s 4G "$work/disk.img"
quiet mkfs.ext4 -q -O ^has_journal -E lazy_itable_init=1 -d "$disk" "$work/disk.img"
mv "$work"/{vmlinuz,initramfs.gz,disk.img} "$out/"
echo "$want" > "$out/stamp"
echo "made the disk of virtual machines in $((SECONDS - started)) s"
