package doctor

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/podplane/podplane/cmd/podplane/internal/backup"
	"github.com/podplane/podplane/cmd/podplane/internal/up"
	"github.com/podplane/podplane/internal/bus"
	"github.com/podplane/podplane/internal/bus/embedded"
	"github.com/podplane/podplane/internal/cri"
)

// askTimeout bounds each thing that is asked: what hangs is a finding.
const askTimeout = 5 * time.Second

// runtimeEndpoint is where the runtime is, or would be, and whether it is our own.
func runtimeEndpoint(c up.Config, info up.Info) (endpoint string, own bool) {
	ownEndpoint := "unix://" + filepath.Join(c.RunDir, "containerd", "containerd.sock")
	for _, e := range []string{info.CRIEndpoint, c.CRIEndpoint} {
		if e != "" {
			return e, e == ownEndpoint
		}
	}
	return ownEndpoint, true
}

func gatherRuntime(ctx context.Context, c up.Config, endpoint string, own, asked bool) Runtime {
	r := Runtime{Own: own, Endpoint: endpoint, Asked: asked}
	if own {
		cfg, err := c.OwnRuntime()
		if err != nil {
			r.Missing = []string{"the directory .local beside bin (" + err.Error() + ")"}
			return r
		}
		r.Missing = cfg.Missing()
	} else {
		r.CNIConfigs, r.CNIMissing = gatherCNI("/etc/cni/net.d", "/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")
	}
	if _, err := os.Stat(strings.TrimPrefix(endpoint, "unix://")); err != nil {
		r.Err = "there is no socket"
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := askRuntime(ctx, &r); err != nil {
		r.Err = err.Error()
	}
	return r
}

func askRuntime(ctx context.Context, r *Runtime) error {
	client, err := cri.Dial(ctx, r.Endpoint, cri.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	v, err := client.Version(ctx)
	if err != nil {
		return err
	}
	r.Name, r.Version, r.API = v.RuntimeName, v.RuntimeVersion, v.RuntimeAPIVersion
	// One that is too old to tell is no finding.
	if c, err := client.RuntimeConfig(ctx); err == nil {
		r.Driver = string(c.CgroupDriver)
	}
	s, err := client.Status(ctx)
	if err != nil {
		return err
	}
	for _, kind := range []string{cri.ConditionRuntimeReady, cri.ConditionNetworkReady} {
		c := s.Condition(kind)
		r.Conditions = append(r.Conditions, Condition{Type: kind, True: c.Status, Reason: c.Reason, Message: c.Message})
	}
	return nil
}

// gatherCNI lists the network configurations in a directory and their plugins that are in none of the others.
func gatherCNI(configs string, programs ...string) (names, missing []string) {
	for _, pattern := range []string{"*.conflist", "*.conf", "*.json"} {
		files, err := filepath.Glob(filepath.Join(configs, pattern))
		if err != nil {
			continue // the pattern is good
		}
		for _, file := range files {
			names = append(names, filepath.Base(file))
			for _, plugin := range pluginsOf(read(file)) {
				there := slices.ContainsFunc(programs, func(dir string) bool {
					_, err := os.Stat(filepath.Join(dir, plugin))
					return err == nil
				})
				if !there && !slices.Contains(missing, plugin) {
					missing = append(missing, plugin)
				}
			}
		}
	}
	return names, missing
}

// pluginsOf are the programs that a network configuration calls.
func pluginsOf(config string) []string {
	type plugin struct {
		Type string `json:"type"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	var c struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if json.Unmarshal([]byte(config), &c) != nil {
		return nil
	}
	var list []string
	for _, p := range append(c.Plugins, c.plugin) {
		for _, name := range []string{p.Type, p.IPAM.Type} {
			if name != "" && filepath.Base(name) == name {
				list = append(list, name)
			}
		}
	}
	return list
}

func gatherBus(ctx context.Context, w Where, info up.Info, ready bool, left func(Leftovers), endpoint string) Bus {
	b := Bus{URL: w.Host.NATSURL, Own: w.Host.NATSURL == "", Asked: ready || w.Host.NATSURL != ""}
	seed := w.Seed
	if b.Own {
		b.URL, seed = info.NATSURL, embedded.SeedFile(w.Host.KeysDir(), embedded.AdminKey)
		b.KeyFile, b.KeyErr = keyOf(w.Host)
	}
	if !b.Asked {
		return b
	}
	ctx, cancel := context.WithTimeout(ctx, 4*askTimeout)
	defer cancel()
	connecting, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	answered := false
	err := backup.Connected(connecting, w.Host, b.URL, seed, func(_ context.Context, c *bus.Conn) error {
		answered = true
		gatherStreams(ctx, c, &b)
		wanted, err := gatherRecords(ctx, c, &b, w.Host.Node, func() map[string]thing { return findThings(ctx, w.Host, endpoint) })
		if err != nil {
			b.RecordsErr = err.Error()
			left(Leftovers{Err: err.Error()})
			return nil
		}
		left(wanted)
		return nil
	})
	if err != nil && !answered {
		b.Err = err.Error()
	}
	return b
}

func gatherStreams(ctx context.Context, c *bus.Conn, b *Bus) {
	before := time.Now()
	list, err := c.Extents(ctx)
	if err != nil {
		b.StreamsErr = err.Error()
		return
	}
	after := time.Now()
	for _, e := range list {
		b.Streams = append(b.Streams, Stream{Name: e.Name, Bytes: e.Bytes, MaxBytes: e.MaxBytes, Rolling: e.Rolling, Last: e.Last})
		// The answer was given at some moment between the two: only what is outside of it is a difference.
		switch {
		case e.Server.Before(before):
			b.Drift = min(b.Drift, e.Server.Sub(before))
		case e.Server.After(after):
			b.Drift = max(b.Drift, e.Server.Sub(after))
		}
	}
}

// gatherRecords reads who runs, what is said of the node, and which of the things on the host belong to no pod.
func gatherRecords(ctx context.Context, c *bus.Conn, b *Bus, node string, find func() map[string]thing) (Leftovers, error) {
	services, err := bus.Look(c, bus.Services).List(ctx, ">")
	if err != nil {
		return Leftovers{}, err
	}
	for _, e := range services {
		if s := e.Value; s.GetNode() == node {
			b.Services = append(b.Services, Service{Name: s.GetService(), Node: s.GetNode(), Instance: s.GetInstance(), Version: s.GetVersion(), Ready: s.GetReady(), Message: s.GetMessage()})
		}
	}
	conditions, err := bus.Look(c, bus.Conditions).List(ctx, bus.NodePattern(node))
	if err != nil {
		return Leftovers{}, err
	}
	for _, e := range conditions {
		v := e.Value
		b.Conditions = append(b.Conditions, NodeCondition{Type: v.GetType(), Status: v.GetStatus(), Reason: v.GetReason(), Message: v.GetMessage(), Heartbeat: v.GetHeartbeat().AsTime()})
	}
	slices.SortFunc(b.Conditions, func(x, y NodeCondition) int { return strings.Compare(x.Type, y.Type) })
	// A pod's record is there before anything of it, and goes after all of it: what is there before and after without one is left over.
	before := find()
	pods, err := bus.Look(c, bus.Pods).List(ctx, bus.NodePattern(node))
	if err != nil {
		return Leftovers{}, err
	}
	wanted := map[string]bool{}
	for _, e := range pods {
		wanted[e.Value.GetUid()] = true
	}
	return leftovers(before, find(), wanted), nil
}
