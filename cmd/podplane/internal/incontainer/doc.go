// Package incontainer has the commands that only the containers of deploy/ need: the runtime, what the containers share, keys and
// health checks. docs/decisions/0011 tells why they are cut as they are.
//
// What runs where: the container "sandbox" holds a network and a process namespace and does nothing else, so that it has no reason to
// die. "runtime" runs containerd in them; pods are on a bridge in that network namespace and in cgroups of their own. "prober" shares the
// network namespace, as it has to reach pods. "volumed" shares the process namespace and joins the runtime's mount namespace, so that
// what it mounts is there for pods, and the host's mount table is never touched: what was mounted is gone with the runtime's container.
package incontainer

import "github.com/spf13/cobra"

// Commands are all of them.
func Commands() []*cobra.Command {
	return []*cobra.Command{sandboxCommand(), runtimeCommand(), joinCommand(), natsConfigCommand(), healthCommand()}
}
