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
func (s *stack) processes() []process { return processesOf(s.cfg.Replicas) }

func processesOf(replicas map[string]int) []process {
	var list []process
	for _, service := range Services {
		for i := range max(replicas[service], 1) {
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
func notReady(node string, list []rest.Service, processes []process, pids map[string]string) string {
	byPID := make(map[string]rest.Service, len(list))
	for _, sv := range list {
		if sv.Node == node { // others have process ids of their own
			byPID[sv.Service+" "+sv.PID] = sv
		}
	}
	var missing []string
	for _, p := range processes {
		sv, registered := byPID[p.service+" "+pids[p.name]]
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

// pids are the processes' ids, by name.
func (s *stack) pids() map[string]string {
	pids := map[string]string{}
	for _, p := range s.processes() {
		if data, err := os.ReadFile(filepath.Join(s.cfg.RunDir, p.name+".pid")); err == nil {
			pids[p.name] = strings.TrimSpace(string(data))
		}
	}
	return pids
}
