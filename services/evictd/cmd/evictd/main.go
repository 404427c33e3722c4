// Command evictd runs the evictd service alone.
package main

import (
	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/services/evictd"
)

func main() { daemon.Main(evictd.Command()) }
