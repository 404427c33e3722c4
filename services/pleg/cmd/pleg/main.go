// Command pleg runs the pleg service alone.
package main

import (
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/services/pleg"
)

func main() { daemon.Main(pleg.Command()) }
