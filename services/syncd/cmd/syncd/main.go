// Command syncd runs the syncd service alone.
package main

import (
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/services/syncd"
)

func main() { daemon.Main(syncd.Command()) }
