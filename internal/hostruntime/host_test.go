package hostruntime

import (
	"slices"
	"strings"
	"testing"
)

func TestHasCapability(t *testing.T) {
	for _, c := range []struct {
		name, status string
		want         bool
		fails        bool
	}{
		{name: "all", status: "Name:\tx\nCapEff:\t000001ffffffffff\n", want: true},
		{name: "without CAP_SYS_RESOURCE", status: "CapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n"},
		{name: "none", status: "CapEff:\t0000000000000000\n"},
		{name: "no such line", status: "Name:\tx\n", fails: true},
		{name: "no number", status: "CapEff:\tall\n", fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := hasCapability(c.status, capSysResource)
			if got != c.want || (err != nil) != c.fails {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestRootIsShared(t *testing.T) {
	const (
		private = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
		shared  = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
		slave   = "28 27 254:0 / / rw,relatime master:1 - ext4 /dev/vda rw\n"
		other   = "29 27 0:22 / /sys rw shared:7 - sysfs sysfs rw\n"
		// The file system's own options come after the dash.
		options = "27 1 0:30 / / rw,relatime - overlay overlay rw,shared:1\n"
	)
	for _, c := range []struct {
		name, mountinfo string
		want            bool
	}{
		{"private", private + other, false},
		{"shared", shared + other, true},
		{"covered by a private one", shared + slave, false},
		{"options of the file system", options, false},
		{"empty", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := rootIsShared(c.mountinfo); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestLacksNamesEach(t *testing.T) {
	if lacks := (Host{CgroupV2: true, SysResource: true, SharedMounts: true, Iptables: true}).Lacks(); len(lacks) > 0 {
		t.Errorf("a full host lacks %q", lacks)
	}
	lacks := strings.Join(Host{}.Lacks(), "\n")
	for _, word := range []string{"cgroup v1", "CAP_SYS_RESOURCE", "propagation", "iptables"} {
		if !strings.Contains(lacks, word) {
			t.Errorf("%s is missing in %q", word, lacks)
		}
	}
}

func TestSystemdCgroup(t *testing.T) {
	for _, c := range []struct {
		host Host
		want bool
	}{
		{Host{CgroupV2: true, Systemd: true}, true},
		{Host{CgroupV2: true}, false},
		{Host{Systemd: true}, false},
	} {
		if got := c.host.SystemdCgroup(); got != c.want {
			t.Errorf("%+v: got %v", c.host, got)
		}
	}
}

func TestSplitRule(t *testing.T) {
	line := `-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"podplane-x0\" id: \"abc\"" -m multiport --dports 8080 -j CNI-DN-1234` + "\n"
	want := []string{
		"-A", "CNI-HOSTPORT-DNAT", "-p", "tcp", "-m", "comment", "--comment", `dnat name: "podplane-x0" id: "abc"`,
		"-m", "multiport", "--dports", "8080", "-j", "CNI-DN-1234",
	}
	got := splitRule(line)
	if !slices.Equal(got, want) {
		t.Fatalf("got %q", got)
	}
	if !(&Config{Bridge: "x0"}).ours(got) {
		t.Error("a rule with the network's name is not taken for its own")
	}
	// The name of one network may be the start of another's.
	if (&Config{Bridge: "x"}).ours(got) {
		t.Error("the rule of another network is taken for its own")
	}
	if got := splitRule(`-A X --comment "" -j Y`); !slices.Equal(got, []string{"-A", "X", "--comment", "", "-j", "Y"}) {
		t.Errorf("an empty word is lost: %q", got)
	}
}

func TestMountPointsUnder(t *testing.T) {
	const mountinfo = `27 1 254:0 / / rw - ext4 /dev/vda rw
30 27 0:40 / /run/a/rootfs rw - overlay overlay rw
31 27 0:41 / /run/ab/rootfs rw - overlay overlay rw
32 27 0:42 / /run/a/with\040space rw - tmpfs tmpfs rw
33 30 0:43 / /run/a/rootfs/proc rw - proc proc rw
`
	want := []string{"/run/a/rootfs", "/run/a/with space", "/run/a/rootfs/proc"}
	if got := mountPointsUnder(mountinfo, []string{"/run/a"}); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
