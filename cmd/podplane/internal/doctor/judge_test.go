package doctor_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/podplane/podplane/cmd/podplane/internal/doctor"
)

var now = time.Date(2026, time.November, 21, 3, 0, 0, 0, time.UTC)

// healthy are the facts of a host on which all is well and Podplane is up.
func healthy() doctor.Facts {
	f := doctor.Facts{
		Now: now, Up: true, Ready: true,
		Host: doctor.Host{
			Kernel: "Linux 6.12", Capabilities: 1<<41 - 1, CgroupV2: true, Controllers: []string{"cpu", "cpuset", "io", "memory", "pids"}, SharedRoot: true,
			Forwarding: true, BridgeFilter: 1, InotifyInstances: 1024, InotifyWatches: 1 << 20, Iptables: true, Pressure: true, ClockSynced: true,
			NewestFile: now.Add(-time.Second),
		},
		Ports: []doctor.Port{
			{Flag: "--listen", Address: "127.0.0.1:8080", Holder: "podplane (process 7)", Ours: true},
			{Flag: "--nats-listen", Address: "127.0.0.1:4222", Holder: "podplane (process 8)", Ours: true},
		},
		Disks: []doctor.Disk{{Path: "/var/lib/podplane", FreeBytes: 50 << 30, TotalBytes: 100 << 30, FreeInodes: 90, TotalInodes: 100}},
		Runtime: doctor.Runtime{
			Own: true, Endpoint: "unix:///run/x.sock", Asked: true, Name: "containerd", Version: "v2.4.2", API: "v1",
			Conditions: []doctor.Condition{{Type: "RuntimeReady", True: true}, {Type: "NetworkReady", True: true}},
		},
		Bus: doctor.Bus{
			URL: "nats://127.0.0.1:4222", Asked: true, Own: true, KeyFile: "/var/lib/podplane/nats.key",
			Streams:    []doctor.Stream{{Name: "pods", Bytes: 1 << 20, MaxBytes: 512 << 20, Last: now.Add(-time.Second)}},
			Conditions: []doctor.NodeCondition{{Type: "RuntimeReady", Status: "True", Heartbeat: now}, {Type: "MemoryPressure", Status: "False", Heartbeat: now}},
		},
		Leftovers: doctor.Leftovers{Looked: true},
	}
	for _, s := range []string{"syncd", "pleg", "prober", "volumed", "evictd", "gateway"} {
		f.Bus.Services = append(f.Bus.Services, doctor.Service{Name: s, Instance: "1", Version: "v1", Ready: true})
	}
	return f
}

func TestHealthy(t *testing.T) {
	findings := doctor.Judge(healthy())
	for _, f := range findings {
		if f.Level != doctor.OK || f.Why != "" || f.Mend != "" || f.Found == "" {
			t.Errorf("%+v", f)
		}
	}
	if doctor.Worst(findings) != doctor.OK || doctor.Worst(nil) != doctor.OK {
		t.Error("the worst of what is well is not ok")
	}
}

// TestJudge changes one fact of a healthy host at a time.
func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*doctor.Facts)
		check  string
		level  doctor.Level
		says   string // in what was found
		mend   string
	}{
		"not root":           {func(f *doctor.Facts) { f.Host.UID = 1000 }, "user", doctor.Problem, "uid 1000", "root"},
		"no SYS_ADMIN":       {func(f *doctor.Facts) { f.Host.Capabilities &^= 1 << 21 }, "capabilities", doctor.Problem, "CAP_SYS_ADMIN", "cap_add"},
		"no SYS_RESOURCE":    {func(f *doctor.Facts) { f.Host.Capabilities &^= 1 << 24 }, "capabilities", doctor.Warning, "CAP_SYS_RESOURCE", "cap_add"},
		"no capabilities":    {func(f *doctor.Facts) { f.Host.Capabilities = 0 }, "capabilities", doctor.Problem, "CAP_SYS_RESOURCE", "cap_add"},
		"no cgroups":         {func(f *doctor.Facts) { f.Host.CgroupsErr = "no such directory" }, "cgroups", doctor.Problem, "no such", "mount cgroup2"},
		"read-only cgroups":  {func(f *doctor.Facts) { f.Host.CgroupsReadOnly = true }, "cgroups", doctor.Problem, "can't be written", "read-write"},
		"cgroup v1":          {func(f *doctor.Facts) { f.Host.CgroupV2 = false }, "cgroups", doctor.Warning, "v1", "unified"},
		"no memory":          {func(f *doctor.Facts) { f.Host.Controllers = []string{"cpu", "cpuset", "pids"} }, "cgroups", doctor.Problem, "v2", "cgroup_enable"},
		"no cpuset":          {func(f *doctor.Facts) { f.Host.Controllers = []string{"cpu", "memory", "pids"} }, "cgroups", doctor.Warning, "v2", "subtree_control"},
		"private mounts":     {func(f *doctor.Facts) { f.Host.SharedRoot = false }, "propagation", doctor.Warning, "private", "make-rshared"},
		"no forwarding":      {func(f *doctor.Facts) { f.Host.Forwarding = false }, "ip_forward", doctor.Warning, "is 0", "sysctl"},
		"no br_netfilter":    {func(f *doctor.Facts) { f.Host.BridgeFilter = -1 }, "br_netfilter", doctor.Warning, "not loaded", "modprobe"},
		"unfiltered bridges": {func(f *doctor.Facts) { f.Host.BridgeFilter = 0 }, "br_netfilter", doctor.Warning, "is 0", "sysctl"},
		"no iptables":        {func(f *doctor.Facts) { f.Host.Iptables = false }, "iptables", doctor.Warning, "no iptables", "install"},
		"few watches":        {func(f *doctor.Facts) { f.Host.InotifyWatches = 100 }, "inotify", doctor.Warning, "100 watches", "max_user_watches"},
		"few instances":      {func(f *doctor.Facts) { f.Host.InotifyInstances = 10 }, "inotify", doctor.Warning, "10 instances", "max_user_instances"},
		"no PSI":             {func(f *doctor.Facts) { f.Host.Pressure = false }, "psi", doctor.Warning, "/proc/pressure", "psi=1"},
		"clock never set":    {func(f *doctor.Facts) { f.Now = time.Unix(1000, 0) }, "clock", doctor.Problem, "1970", "timesyncd"},
		"clock went back":    {func(f *doctor.Facts) { f.Host.NewestFile = now.Add(time.Hour) }, "clock", doctor.Problem, "1h0m0s from now", "timesyncd"},
		"bus is late":        {func(f *doctor.Facts) { f.Bus.Drift = -3 * time.Second }, "clock", doctor.Problem, "-3s", "both hosts"},
		"free-running clock": {func(f *doctor.Facts) { f.Host.ClockSynced = false }, "clock", doctor.Warning, "in step", "timesyncd"},
		"no directory":       {func(f *doctor.Facts) { f.Disks[0].Err = "can't be seen" }, "disk", doctor.Problem, "can't be seen", "directory"},
		"read-only disk":     {func(f *doctor.Facts) { f.Disks[0].ReadOnly = true }, "disk", doctor.Problem, "read-only", "read-write"},
		"little space":       {func(f *doctor.Facts) { f.Disks[0].FreeBytes = 5 << 30 }, "disk", doctor.Warning, "5 GiB of 100", "make room"},
		"no space":           {func(f *doctor.Facts) { f.Disks[0].FreeBytes = 1 << 30 }, "disk", doctor.Problem, "1 GiB of 100", "make room"},
		"no inodes":          {func(f *doctor.Facts) { f.Disks[0].FreeInodes = 1 }, "disk", doctor.Problem, "1% of the inodes", "make room"},
		"port taken":         {func(f *doctor.Facts) { f.Up, f.Ports[0] = false, port("nginx (process 3)", false) }, "port", doctor.Problem, "nginx", "--listen"},
		"port of another":    {func(f *doctor.Facts) { f.Ports[0] = port("", false) }, "port", doctor.Problem, "can't be seen", "--listen"},
		"port of one gone":   {func(f *doctor.Facts) { f.Up, f.Ports[0] = false, port("podplane (process 3)", true) }, "port", doctor.Problem, "podplane", "--listen"},
		"nobody listens":     {func(f *doctor.Facts) { f.Ports[0].Free = true }, "port", doctor.Problem, "nobody listens", "log of gateway"},
		"not yet":            {func(f *doctor.Facts) { f.Ready, f.Ports[0].Free = false, true }, "port", doctor.Warning, "nobody listens yet", "moment"},
		"no address":         {func(f *doctor.Facts) { f.Ports[0].Err = "cannot assign requested address" }, "port", doctor.Problem, "cannot assign", "another address"},
		"no programs":        {func(f *doctor.Facts) { f.Runtime.Missing = []string{"/x/runc"} }, "runtime", doctor.Problem, "/x/runc", "make runtime"},
		"two managers":       {func(f *doctor.Facts) { f.Host.Systemd, f.Runtime.Driver = true, "cgroupfs" }, "driver", doctor.Warning, "itself", "SystemdCgroup = true"},
		"no systemd":         {func(f *doctor.Facts) { f.Host.Systemd, f.Runtime.Driver = false, "systemd" }, "driver", doctor.Problem, "none here", "SystemdCgroup = false"},
		"own runtime away":   {func(f *doctor.Facts) { f.Runtime.Err = "connection refused" }, "runtime", doctor.Problem, "refused", "containerd.log"},
		"runtime away":       {func(f *doctor.Facts) { f.Runtime.Err, f.Runtime.Own = "refused", false }, "runtime", doctor.Problem, "refused", "disabled_plugins"},
		"old CRI":            {func(f *doctor.Facts) { f.Runtime.API = "v1alpha2" }, "runtime", doctor.Problem, "v1alpha2", "containerd 1.7"},
		"runtime not ready":  {func(f *doctor.Facts) { f.Runtime.Conditions[0].True = false }, "RuntimeReady", doctor.Problem, "", "own log"},
		"no network":         {func(f *doctor.Facts) { f.Runtime.Conditions[1].True = false }, "NetworkReady", doctor.Problem, "", "/etc/cni/net.d"},
		"no plugin":          {func(f *doctor.Facts) { f.Runtime.CNIMissing = []string{"calico"} }, "cni", doctor.Problem, "calico", "install"},
		"key is gone":        {func(f *doctor.Facts) { f.Bus.KeyErr = "their key is gone" }, "key", doctor.Problem, "gone", "restore"},
		"bus away":           {func(f *doctor.Facts) { f.Bus.Err = "no servers" }, "bus", doctor.Problem, "no servers", "nats.log"},
		"starting":           {func(f *doctor.Facts) { f.Ready = false }, "podplane", doctor.Warning, "being started", "moment"},
		"run dir":            {func(f *doctor.Facts) { f.UpErr = "permission denied" }, "podplane", doctor.Problem, "denied", "--run-dir"},
		"stream full":        {func(f *doctor.Facts) { f.Bus.Streams[0].Bytes = 500 << 20 }, "records", doctor.Problem, "pods: 97% of 512 MiB", "delete"},
		"no stream":          {func(f *doctor.Facts) { f.Bus.StreamsErr = "no answer" }, "records", doctor.Problem, "no answer", "log"},
		"stale":              {func(f *doctor.Facts) { f.Bus.Streams[0].Last = now.Add(-time.Hour) }, "records", doctor.Problem, "1h0m0s", "services"},
		"no records":         {func(f *doctor.Facts) { f.Bus.RecordsErr = "no answer" }, "services", doctor.Problem, "no answer", "log"},
		"no syncd":           {func(f *doctor.Facts) { f.Bus.Services = f.Bus.Services[1:] }, "services", doctor.Problem, "syncd is not registered", "syncd.log"},
		"not ready": {func(f *doctor.Facts) {
			f.Bus.Services[1].Ready, f.Bus.Services[1].Message = false, "waits for the runtime"
		}, "services", doctor.Problem, "pleg/1 is not ready: waits", "readyz"},
		"two versions":    {func(f *doctor.Facts) { f.Bus.Services[1].Version = "v2" }, "versions", doctor.Warning, "v1, v2", "one version"},
		"stale condition": {func(f *doctor.Facts) { f.Bus.Conditions[0].Heartbeat = now.Add(-time.Minute) }, "RuntimeReady", doctor.Problem, "1m0s ago", "services"},
		"pressure":        {func(f *doctor.Facts) { f.Bus.Conditions[1].Status = "True" }, "MemoryPressure", doctor.Problem, "True", "shrink"},
		"runtime says no": {func(f *doctor.Facts) { f.Bus.Conditions[0].Status = "False" }, "RuntimeReady", doctor.Problem, "False", "runtime"},
		"leftovers": {
			func(f *doctor.Facts) { f.Leftovers.Mounts = []string{"/a", "/b", "/c", "/d"} }, "leftovers", doctor.Warning,
			"4 mounts of pods that nobody wants: /a, /b, /c, …", "umount",
		},
		"leftover cgroup":  {func(f *doctor.Facts) { f.Leftovers.Cgroups = []string{"/x"} }, "leftovers", doctor.Warning, "1 cgroups", "rmdir"},
		"not looked":       {func(f *doctor.Facts) { f.Leftovers = doctor.Leftovers{Err: "no answer"} }, "leftovers", doctor.Warning, "no answer", "first"},
		"not up":           {func(f *doctor.Facts) { f.Up, f.Ready, f.Bus.Asked = false, false, false; free(f) }, "podplane", doctor.Warning, "not up", "podplane up"},
		"records in clear": {func(f *doctor.Facts) { f.Bus.KeyFile = "" }, "key", doctor.OK, "in the clear", ""},
	} {
		f := healthy()
		c.change(&f)
		var hit *doctor.Finding
		findings := doctor.Judge(f)
		for _, got := range findings {
			switch {
			case got.Check == c.check && got.Level == c.level && strings.Contains(got.Found, c.says) && strings.Contains(got.Mend, c.mend):
				hit = &got
			case got.Level == doctor.Problem && c.level != doctor.Problem:
				t.Errorf("%s: a problem too many: %+v", name, got)
			}
			if got.Level != doctor.OK && (got.Why == "" || got.Mend == "") {
				t.Errorf("%s: without why or how: %+v", name, got)
			}
		}
		if hit == nil {
			t.Errorf("%s: no finding %s %s that says %q and %q in\n%s", name, c.check, c.level, c.says, c.mend, text(t, findings))
		}
		if got := doctor.Worst(findings); got != c.level {
			t.Errorf("%s: the worst is %s, want %s", name, got, c.level)
		}
	}
}

func port(holder string, ours bool) doctor.Port {
	return doctor.Port{Flag: "--listen", Address: "127.0.0.1:8080", Holder: holder, Ours: ours}
}

func free(f *doctor.Facts) {
	for i := range f.Ports {
		f.Ports[i].Free = true
	}
}

func text(t *testing.T, findings []doctor.Finding) string {
	t.Helper()
	var b bytes.Buffer
	if err := doctor.Print(&b, findings); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPrint(t *testing.T) {
	findings := []doctor.Finding{
		{Check: "a", Level: doctor.OK, Found: "fine"},
		{Check: "b", Level: doctor.Warning, Found: "odd", Why: "it matters", Mend: "do this"},
		{Check: "c", Level: doctor.Problem, Found: "bad", Why: "it hurts", Mend: "do that"},
	}
	want := `ok       a              fine
warning  b              odd
                   why: it matters
                  mend: do this
problem  c              bad
                   why: it hurts
                  mend: do that
1 ok, 1 warnings, 1 problems
`
	if got := text(t, findings); got != want {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
	var b bytes.Buffer
	if err := doctor.PrintJSON(&b, findings); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Worst    doctor.Level
		Findings []doctor.Finding
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil || got.Worst != doctor.Problem || len(got.Findings) != 3 || got.Findings[2] != findings[2] {
		t.Errorf("%+v %v", got, err)
	}
}
