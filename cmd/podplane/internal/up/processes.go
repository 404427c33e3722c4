package up

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/podplane/podplane/cmd/podplane/internal/rest"
)

// process is one replica of a service.
type process struct{ name, service string }

// processes are all that run, in the order in which they are started: the first of a service has its name, the others syncd-2, syncd-3.
func (s *stack) processes() []process {
	var list []process
	for _, service := range Services {
		for i := range max(s.cfg.Replicas[service], 1) {
			name := service
			if i > 0 {
				name = fmt.Sprintf("%s-%d", service, i+1)
			}
			list = append(list, process{name, service})
		}
	}
	return list
}

// summary names the services with their replicas.
func (s *stack) summary() string {
	names := make([]string, len(Services))
	for i, service := range Services {
		names[i] = service
		if n := s.cfg.Replicas[service]; n > 1 {
			names[i] += fmt.Sprintf("=%d", n)
		}
	}
	return strings.Join(names, " ")
}

// notReady names the processes that are not ready yet, and why; empty: all are. A registration counts only if it is that
// of the running child, not of one that ended a moment ago.
func (s *stack) notReady(list []rest.Service) string {
	byPID := make(map[string]rest.Service, len(list))
	for _, sv := range list {
		byPID[sv.Service+" "+sv.PID] = sv
	}
	var missing []string
	for _, p := range s.processes() {
		sv, registered := byPID[p.service+" "+s.pid(p.name)]
		switch {
		case !registered:
			missing = append(missing, p.name+": not registered yet")
		case !sv.Ready && sv.Message != "":
			missing = append(missing, p.name+": "+sv.Message)
		case !sv.Ready:
			missing = append(missing, p.name+": not ready yet")
		}
	}
	return strings.Join(missing, "; ")
}

func (s *stack) pid(name string) string {
	data, err := os.ReadFile(filepath.Join(s.cfg.RunDir, name+".pid"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
