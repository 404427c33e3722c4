// Command prober runs the service of that name on its own.
package main

import (
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/services/prober"
)

func main() { daemon.Main(prober.Command()) }
