package up

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// memory is what must stay as it is while there are pods: under other settings they would be strangers, and left alone.
type memory struct {
	Node       string `json:"node"`
	CgroupRoot string `json:"cgroupRoot"`
	PodLogDir  string `json:"podLogDir"`
}

func (c *Config) memoryFile() string { return filepath.Join(c.Root, "host.json") }

// recall takes what an earlier `podplane up` with this root was told, for each flag that is not given now (the host's name may have
// changed). A flag that says something else is refused.
func (c *Config) recall(given func(flag string) bool) error {
	data, err := os.ReadFile(c.memoryFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read how Podplane was started last: %w", err)
	}
	var m memory
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("decode %s, which says how Podplane was started last: %w", c.memoryFile(), err)
	}
	for _, s := range []struct {
		flag string
		now  *string
		was  string
	}{{"node", &c.Node, m.Node}, {"cgroup-root", &c.CgroupRoot, m.CgroupRoot}, {"pod-log-dir", &c.PodLogDir, m.PodLogDir}} {
		if s.was == "" || *s.now == s.was {
			continue
		}
		if given(s.flag) {
			return fmt.Errorf("--%s %q: the pods in %s were started with %q and would be left alone; leave the flag out, or remove them first with `podplane down --pods --root %s`",
				s.flag, *s.now, c.Root, s.was, c.Root)
		}
		*s.now = s.was
	}
	return nil
}

// remember keeps what recall takes.
func (c *Config) remember() error {
	data, err := json.MarshalIndent(memory{Node: c.Node, CgroupRoot: c.CgroupRoot, PodLogDir: c.PodLogDir}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Root, 0o750); err != nil {
		return fmt.Errorf("make --root: %w", err)
	}
	next := c.memoryFile() + ".next"
	if err := os.WriteFile(next, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("remember how Podplane was started: %w", err)
	}
	return os.Rename(next, c.memoryFile())
}

// forget is for when the last pod is gone.
func (c *Config) forget() error {
	if err := os.Remove(c.memoryFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
