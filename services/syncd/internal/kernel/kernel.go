// Package kernel has the settings of the kernel that a Kubernetes node counts on.
//
// They belong to the host: nothing is changed unless Apply is asked to, and nothing is put back.
package kernel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// setting is a file below /proc/sys and what has to be in it.
type setting struct{ file, want string }

// settings are those of Kubernetes' node agent.
var settings = []setting{
	{"vm/overcommit_memory", "1"},
	{"vm/panic_on_oom", "0"},
	{"kernel/panic", "10"},
	{"kernel/panic_on_oops", "1"},
	{"kernel/keys/root_maxkeys", "1000000"},
	{"kernel/keys/root_maxbytes", "25000000"},
}

// Mode is what is done about settings that differ.
type Mode string

// The modes.
const (
	Leave Mode = "leave"
	Check Mode = "check"
	Set   Mode = "set"
)

// Modes are all of them.
var Modes = []string{string(Leave), string(Check), string(Set)}

// Apply looks at the settings below dir (/proc/sys). With Check it returns an error that names those that differ; with Set it sets them, and returns
// an error that names those that could not be. With Leave it does nothing.
func Apply(dir string, mode Mode) error {
	if mode == Leave || mode == "" {
		return nil
	}
	var errs []error
	for _, s := range settings {
		file := filepath.Join(dir, s.file)
		data, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		name, have := strings.ReplaceAll(s.file, "/", "."), strings.TrimSpace(string(data))
		switch {
		case have == s.want:
		case mode == Check:
			errs = append(errs, fmt.Errorf("%s is %s, want %s", name, have, s.want))
		default:
			if err := os.WriteFile(file, []byte(s.want), 0o644); err != nil {
				errs = append(errs, fmt.Errorf("set %s to %s: %w", name, s.want, err))
			}
		}
	}
	return errors.Join(errs...)
}
