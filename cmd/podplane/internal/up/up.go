package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/podplane/podplane/cmd/podplane/internal/records"
	"github.com/podplane/podplane/internal/bus"
)

// infoName is the name of Info's file.
const infoName = "up.json"

// Info is what others may want to know of a running Podplane; up.json in the
// run directory holds it while everything is ready.
type Info struct {
	Server      string `json:"server"`
	NATSURL     string `json:"natsURL"`
	CRIEndpoint string `json:"criEndpoint"`
	Node        string `json:"node"`
}

func (s *stack) writeInfo() error {
	data, err := json.MarshalIndent(Info{
		Server: s.server(), NATSURL: s.cfg.NATSURL, CRIEndpoint: s.cfg.CRIEndpoint, Node: s.cfg.Node,
	}, "", "  ")
	if err != nil {
		return err
	}
	next := s.infoFile() + ".next"
	if err := os.WriteFile(next, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", s.infoFile(), err)
	}
	return os.Rename(next, s.infoFile())
}

// Run starts everything, says where it is, and keeps it running until ctx ends.
func Run(ctx context.Context, cfg Config, out io.Writer) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := cfg.remember(); err != nil {
		return err
	}
	s, err := start(ctx, cfg, out)
	if err != nil {
		return err
	}
	defer s.stop()
	s.say(`
  REST      %[1]s/api/v1/pods
  API docs  %[1]s/docs
  logs      %[2]s

Podplane is up on node %[3]s. Ctrl-C stops it and leaves the pods running;
`+"`podplane down --pods`"+` removes them too.
`, s.server(), s.logDir(), s.cfg.Node)
	select {
	case <-ctx.Done():
		s.say("\nstopping; pods go on running%s\n", s.runtime.farewell())
		return nil
	case err := <-s.failed:
		return err
	}
}

// downTimeout bounds `podplane down --pods`; each pod has its own grace.
const downTimeout = 10 * time.Minute

// Down stops a running Podplane. With pods it also removes every pod, and the
// runtime if it is ours.
func Down(ctx context.Context, cfg Config, pods bool, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	was, err := stopRunning(ctx, cfg.RunDir)
	if err != nil {
		return err
	}
	if was {
		fmt.Fprintln(out, "stopped")
	} else if !pods {
		fmt.Fprintln(out, "podplane is not up; nothing to stop")
	}
	if !pods {
		return nil
	}
	return removePods(ctx, cfg, out)
}

// removePods starts Podplane once more, without manifests and on a port of its
// own, so that pods end as they should: hooks, grace, volumes.
func removePods(ctx context.Context, cfg Config, out io.Writer) error {
	cfg.ManifestDir = ""
	cfg.Listen, cfg.NATSListen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Door = Door{private: true} // whoever may use the door otherwise: only this process does now
	s, err := start(ctx, cfg, io.Discard)
	if err != nil {
		return fmt.Errorf("start Podplane to remove its pods: %w", err)
	}
	n, err := s.deleteAll(ctx)
	own, ownBus := s.runtime, s.ownBus
	s.stop()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "removed %d pods\n", n)
	return errors.Join(own.stopRuntime(ctx, cfg.CgroupRoot), cfg.forgetNode(ctx, ownBus), cfg.forget())
}

// forgetNode deletes the node's own records from the bus that is this host's alone: the node may have another name next time, and the old one
// would count as a second node. From a bus that nodes share `podplane forget` does that.
func (c *Config) forgetNode(ctx context.Context, ownBus bool) error {
	if !ownBus {
		return nil
	}
	release, err := Exclusive(c.RunDir)
	if err != nil {
		return err
	}
	defer release()
	return records.Serve(ctx, c.BusDir(), c.BusKey(), func(ctx context.Context, conn *bus.Conn) error {
		_, err := bus.Forget(ctx, conn, c.Node)
		return err
	})
}
