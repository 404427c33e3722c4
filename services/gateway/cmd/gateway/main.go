// Command gateway runs Podplane's front door alone.
package main

import (
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/services/gateway"
)

func main() { daemon.Main(gateway.Command()) }
