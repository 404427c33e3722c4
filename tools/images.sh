#!/usr/bin/env bash
# Builds the image archives under .local/images: pause (the sandboxes' own container), demo (the tutorial), and for the tests app and
# busybox. What did not change is not built again.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
images=.local/images
build=.local/build
mkdir -p "$images" "$build" .local/stamps

stamp=.local/stamps/images
want=$(cat tools/images.sh internal/hostruntime/pause/* internal/image/*.go internal/image/mkimage/* test/images/app/* go.work /bin/busybox <(go version) | sha256sum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
  exit 0
fi
echo "building images"
gcc -Os -static -s -Wall -Wextra -Werror -o "$build/pause" internal/hostruntime/pause/pause.c
export CGO_ENABLED=0 GOFLAGS="-buildvcs=false"
go build -trimpath -ldflags '-s -w' -o "$build/app" ./test/images/app
go build -trimpath -o .local/bin/mkimage ./internal/image/mkimage

mkimage=.local/bin/mkimage
printf 'root:x:0:0:root:/:/app\napp:x:1000:1000:app:/:/app\nnobody:x:65534:65534:nobody:/:/app\n' > "$build/passwd"
printf 'root:x:0:\napp:x:1000:\nextra:x:2000:app\nnogroup:x:65534:\n' > "$build/group"
chmod 0644 "$build/passwd" "$build/group"
chmod 0755 "$build/pause" "$build/app"
$mkimage -o "$images/pause.tar" -ref podplane.local/pause:1 -user 65535:65535 -entrypoint /pause /pause="$build/pause"
app=(/app="$build/app" /etc/passwd="$build/passwd" /etc/group="$build/group" /tmp/)
$mkimage -o "$images/demo.tar" -ref podplane.local/demo:1 -entrypoint /app -cmd serve "${app[@]}"
$mkimage -o "$images/app.tar" -ref podplane.local/app:1 -entrypoint /app -cmd serve "${app[@]}"
links=()
for applet in $(/bin/busybox --list | grep -vx busybox); do
  links+=("/bin/$applet=@busybox")
done
$mkimage -o "$images/busybox.tar" -ref podplane.local/busybox:1 -cmd /bin/sh /bin/busybox=/bin/busybox "${links[@]}" \
  /etc/passwd="$build/passwd" /etc/group="$build/group" /tmp/
echo "$want" > "$stamp"
