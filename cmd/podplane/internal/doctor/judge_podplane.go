package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/cri"
)

// judgeDriver: a host has one manager of cgroups.
func judgeDriver(f Facts) []Finding {
	switch d := cri.CgroupDriver(f.Runtime.Driver); {
	case d == "":
		return nil
	case d == cri.CgroupDriverCgroupfs && f.Host.Systemd && f.Host.CgroupV2:
		return []Finding{{
			"driver", Warning, "the runtime makes cgroups itself on a host of systemd", "there are two managers of one tree: what systemd does to its part can take limits from pods",
			"SystemdCgroup = true in the options of runc in containerd's configuration, or cgroup_manager = \"systemd\" in CRI-O's; Podplane follows what the runtime says",
		}}
	case d == cri.CgroupDriverSystemd && !f.Host.Systemd:
		return []Finding{{
			"driver", Problem, "the runtime asks systemd for cgroups, and there is none here", "no sandbox can be started", "SystemdCgroup = false in the options of runc in containerd's configuration",
		}}
	default:
		return []Finding{ok("driver", "the runtime's cgroups are made by %s", d)}
	}
}

func judgeRuntime(f Facts) []Finding {
	r := f.Runtime
	if len(r.Missing) > 0 {
		return []Finding{{
			"runtime", Problem, "missing: " + strings.Join(r.Missing, ", "), "podplane up can't run a runtime of its own", "make runtime images, or name another runtime with --cri-endpoint",
		}}
	}
	if r.Err != "" {
		if !r.Asked {
			return []Finding{ok("runtime", "its programs are there; it is started with podplane up")}
		}
		mend := "start it, and see that it serves CRI at that address: crictl --runtime-endpoint " + r.Endpoint + " info; containerd must not have cri in disabled_plugins"
		if r.Own {
			mend = "its log is containerd.log in the directory containerd below --root; podplane up starts it again each second"
		}
		return []Finding{{"runtime", Problem, r.Endpoint + ": " + r.Err, "running containers go on; nothing is started, stopped or seen", mend}}
	}
	list := []Finding{ok("runtime", "%s %s, CRI %s, at %s", r.Name, r.Version, r.API, r.Endpoint)}
	if r.API != "v1" {
		list[0] = Finding{
			"runtime", Problem, fmt.Sprintf("%s %s speaks CRI %s", r.Name, r.Version, r.API), "Podplane speaks CRI v1", "containerd 1.7 or CRI-O 1.26, or newer, have it",
		}
	}
	list = append(list, judgeDriver(f)...)
	for _, c := range r.Conditions {
		switch {
		case c.True:
			list = append(list, ok(c.Type, "the runtime says so"))
		case strings.HasPrefix(c.Type, "Network"):
			list = append(list, Finding{
				c.Type, Problem, strings.TrimSpace(c.Reason + ": " + c.Message), "pods that are not on the host's network wait for it",
				"install CNI plugins in /opt/cni/bin and a configuration in /etc/cni/net.d; a runtime of Podplane's own brings both along",
			})
		default:
			list = append(list, Finding{c.Type, Problem, strings.TrimSpace(c.Reason + ": " + c.Message), "no container is started", "look at the runtime's own log"})
		}
	}
	if len(r.CNIMissing) > 0 {
		list = append(list, Finding{
			"cni", Problem, "not there: " + strings.Join(r.CNIMissing, ", "), "pods that are not on the host's network can't be started",
			"install the plugins that the configuration in /etc/cni/net.d names (containernetworking/plugins), or the network that brought it",
		})
	} else if !r.Own {
		list = append(list, ok("cni", "%d configurations, with their plugins", len(r.CNIConfigs)))
	}
	return list
}

func judgeBus(f Facts) []Finding {
	b := f.Bus
	var list []Finding
	switch {
	case f.UpErr != "":
		list = append(list, Finding{"podplane", Problem, f.UpErr, "whether Podplane is up is not known", "name its --run-dir"})
	case !f.Up && !b.Asked:
		list = append(list, Finding{"podplane", Warning, "not up", "the bus, the services and leftovers are looked at only when it is", "podplane up"})
	case f.Up && !f.Ready:
		list = append(list, Finding{
			"podplane", Warning, "being started, or stopped", "what follows may still change",
			"look again in a moment; if it stays so, what podplane up prints and the logs below --root say what is missing",
		})
	}
	if b.KeyErr != "" {
		list = append(list, Finding{
			"key", Problem, b.KeyErr, "without their key the records can't be read: the bus does not start",
			"bring the file back from where you keep it, mode 0600, or name it with --encryption-key; else restore a backup (podplane restore --replace)",
		})
	} else if b.Own {
		what := "the key of the records is in " + b.KeyFile
		if b.KeyFile == "" {
			what = "the records are in the clear, as was said"
		}
		list = append(list, ok("key", "%s", what))
	}
	switch {
	case !b.Asked:
	case b.Err != "":
		list = append(list, Finding{
			"bus", Problem, b.Err, "running pods go on; new ones are answered 503 and nothing changes", "its log is log/nats.log below --root; a bus that is named with --nats-url: is it up, and is the key right?",
		})
	default:
		list = append(list, ok("bus", "%s answers", b.URL))
	}
	return list
}

// fullPercent is where a stream's bound is near.
const fullPercent = 80

func judgeRecords(f Facts) []Finding {
	b := f.Bus
	if !b.Asked || b.Err != "" {
		return nil
	}
	if b.StreamsErr != "" {
		return []Finding{{"records", Problem, b.StreamsErr, "what the bus holds is not known", "look at its log"}}
	}
	var list []Finding
	var bytes uint64
	var last time.Time
	for _, s := range b.Streams {
		bytes += s.Bytes
		if s.Last.After(last) {
			last = s.Last
		}
		if full := percent(s.Bytes, s.MaxBytes); s.MaxBytes > 0 && full >= fullPercent && !s.Rolling {
			list = append(list, Finding{
				"records", Problem, fmt.Sprintf("%s: %d%% of %d MiB", s.Name, full, s.MaxBytes>>20), "beyond its bound writes are refused: nothing new can be stored in it",
				"delete pods, ConfigMaps or Secrets that are not needed",
			})
		}
	}
	if age := f.Now.Sub(last); age > staleAfter {
		return append(list, Finding{
			"records", Problem, fmt.Sprintf("the last one is %s old", age.Round(time.Second)), "services renew theirs every few seconds: none of them writes any more",
			"look at podplane services and at the services' logs below --root",
		})
	}
	return append(list, ok("records", "%d MiB in %d streams, the last one %s ago", bytes>>20, len(b.Streams), max(f.Now.Sub(last), 0).Round(time.Second)))
}

// staleAfter is when a condition counts as Unknown.
const staleAfter = 40 * time.Second

// wanted are the services that a node needs.
var wanted = []string{"syncd", "pleg", "prober", "volumed", "evictd", "gateway"}

func judgeServices(f Facts) []Finding {
	b := f.Bus
	if !b.Asked || b.Err != "" {
		return nil
	}
	if b.RecordsErr != "" {
		return []Finding{{"services", Problem, b.RecordsErr, "which services run is not known", "look at the log of the bus"}}
	}
	var list []Finding
	var versions []string
	for _, name := range wanted {
		i := slices.IndexFunc(b.Services, func(s Service) bool { return s.Name == name })
		if i < 0 {
			list = append(list, Finding{
				"services", Problem, name + " is not registered", "docs/operations.md says what waits for it", "its log is log/" + name + ".log below --root; podplane up starts it again by itself",
			})
		}
	}
	for _, s := range b.Services {
		if !s.Ready {
			list = append(list, Finding{
				"services", Problem, fmt.Sprintf("%s/%s is not ready: %s", s.Name, s.Instance, s.Message), "what it does waits", "its log is below --root; /readyz?verbose at its address lists its checks",
			})
		}
		if !slices.Contains(versions, s.Version) {
			versions = append(versions, s.Version)
		}
	}
	if len(versions) > 1 {
		slices.Sort(versions)
		list = append(list, Finding{
			"versions", Warning, strings.Join(versions, ", "), "services of several versions work together during an upgrade, and it has not ended", "bring all of them to one version",
		})
	}
	if len(list) == 0 {
		list = append(list, ok("services", "%d replicas are ready, version %s", len(b.Services), strings.Join(versions, "")))
	}
	return append(list, judgeConditions(f)...)
}

func judgeConditions(f Facts) []Finding {
	var list []Finding
	for _, c := range f.Bus.Conditions {
		age := f.Now.Sub(c.Heartbeat)
		good := "True"
		if strings.HasSuffix(c.Type, "Pressure") {
			good = "False"
		}
		switch {
		case age > staleAfter:
			list = append(list, Finding{
				c.Type, Problem, fmt.Sprintf("last said %s ago", age.Round(time.Second)), "it counts as Unknown", "evictd and pleg keep the conditions: look at podplane services",
			})
		case c.Status == good:
			list = append(list, ok(c.Type, "%s", c.Status))
		case good == "False":
			list = append(list, Finding{
				c.Type, Problem, c.Status + ": " + c.Message, "pods are evicted, and new ones that are not critical are refused", "end or shrink what uses it: podplane get pods, the node's statistics in the REST API",
			})
		default:
			list = append(list, Finding{c.Type, Problem, c.Status + ": " + c.Message, "nothing can be started", "look at what is said of the runtime above, and at its log"})
		}
	}
	return list
}

// shown is how many leftovers are named.
const shown = 3

func judgeLeftovers(f Facts) []Finding {
	l := f.Leftovers
	if !l.Looked {
		if l.Err == "" {
			return nil // said already: the bus is not there to be asked
		}
		return []Finding{{"leftovers", Warning, l.Err, "what earlier pods left is not known", "mend what is said above first"}}
	}
	var list []Finding
	for _, k := range []struct {
		what, why, mend string
		items           []string
	}{
		{"directories", "they take disk space", "look into them, then remove them", l.Directories},
		{"mounts", "they keep disks and file systems busy", "umount them, the deepest first", l.Mounts},
		{"cgroups", "processes in them run without a pod; empty ones cost a little memory", "kill what cgroup.procs lists, then rmdir them", l.Cgroups},
		{"sandboxes", "they hold addresses and run processes", "syncd removes them within minutes; otherwise crictl rmp -f", l.Sandboxes},
	} {
		if n := len(k.items); n > 0 {
			found := fmt.Sprintf("%d %s of pods that nobody wants: %s", n, k.what, strings.Join(k.items[:min(n, shown)], ", "))
			if n > shown {
				found += ", …"
			}
			list = append(list, Finding{"leftovers", Warning, found, k.why, k.mend})
		}
	}
	if len(list) == 0 {
		return []Finding{ok("leftovers", "none")}
	}
	return list
}
