package doctor

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/cmd/podplane/internal/up"
)

const uid = "0a1b2c3d-0000-4111-8222-333344445555"

func TestKernelsTables(t *testing.T) {
	if got := effective("Name:\tx\nCapInh:\t0\nCapEff:\t000001ffffffffff\n"); got != 1<<41-1 {
		t.Errorf("capabilities %x", got)
	}
	table := `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0
   1: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 20 4 30 10 -1
   2: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100 0 0 10 0
`
	if got := listening(table, 8080); !slices.Equal(got, []string{"socket:[4711]"}) {
		t.Errorf("port 8080 is held by %v", got)
	}
	mounts := podMounts("36 35 0:5 / /r/pods/"+uid+"/volumes/x rw - tmpfs\n37 35 0:5 / /r/pods/x rw - tmpfs\n38 35 0:5 / /r/podsx/"+uid+" rw\nshort\n", "/r/pods")
	if len(mounts) != 1 || mounts["/r/pods/"+uid+"/volumes/x"] != uid {
		t.Errorf("mounts %v", mounts)
	}
	for name, want := range map[string]string{
		"pod" + uid: uid, "kubepods-burstable-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice": uid,
		"pod": "", "podman": "", "besteffort": "", "xpod" + uid: "",
	} {
		if got, is := cgroupUID(name); got != want || is != (want != "") {
			t.Errorf("cgroup %s is of %q", name, got)
		}
	}
}

func TestCNI(t *testing.T) {
	configs, programs := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"10-a.conflist": `{"plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}, {"type": "portmap"}]}`,
		"20-b.conf":     `{"type": "loopback"}`, "30-c.json": "broken", "README": "x",
	} {
		if err := os.WriteFile(filepath.Join(configs, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"bridge", "loopback"} {
		if err := os.WriteFile(filepath.Join(programs, p), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	names, missing := gatherCNI(configs, "/nowhere", programs)
	slices.Sort(missing)
	if len(names) != 3 || !slices.Equal(missing, []string{"host-local", "portmap"}) {
		t.Errorf("%v %v", names, missing)
	}
}

func TestLeftovers(t *testing.T) {
	before := map[string]thing{"/a": {directory, "wanted"}, "/b": {directory, "gone"}, "/c": {mount, "left"}, "/d": {sandbox, "left"}, "/e": {cgroup, "left"}}
	after := map[string]thing{"/a": {directory, "wanted"}, "/c": {mount, "left"}, "/d": {sandbox, "left"}, "/e": {cgroup, "left"}, "/new": {directory, "new"}}
	l := leftovers(before, after, map[string]bool{"wanted": true})
	if len(l.Directories) != 0 || !slices.Equal(l.Mounts, []string{"/c"}) || !slices.Equal(l.Sandboxes, []string{"/d"}) || !slices.Equal(l.Cgroups, []string{"/e"}) {
		t.Errorf("%+v", l)
	}
}

// TestThisHost looks at the host that the test runs on: what can't be otherwise is seen.
func TestThisHost(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	dir := t.TempDir()
	c := up.Config{Root: filepath.Join(dir, "a", "b"), RunDir: dir, PodLogDir: dir, Listen: l.Addr().String(), NATSListen: "127.0.0.1:0", CgroupRoot: "/nowhere"}
	before := time.Now()
	f := Gather(t.Context(), Where{Host: c})
	if f.Up || f.Ready || f.UpErr != "" || f.Now.Before(before) || f.Bus.Asked || f.Bus.KeyErr != "" {
		t.Errorf("%+v", f)
	}
	if p := f.Ports[0]; p.Free || p.Ours || !strings.Contains(p.Holder, strconv.Itoa(os.Getpid())) {
		t.Errorf("our own port: %+v", p)
	}
	if len(f.Disks) != 1 || f.Disks[0].TotalBytes == 0 || f.Disks[0].Err != "" {
		t.Errorf("disks %+v", f.Disks)
	}
	if f.Host.Kernel == "" || f.Host.Capabilities == 0 || len(f.Host.Controllers) == 0 || f.Host.InotifyWatches == 0 {
		t.Errorf("host %+v", f.Host)
	}
}
