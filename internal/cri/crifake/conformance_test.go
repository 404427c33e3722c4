package crifake_test

import (
	"context"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/conformance"
	"github.com/podplane/podplane/internal/cri/crifake"
	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/pod"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Subject {
		runtime := crifake.New(crifake.Options{Node: "n1", Behavior: act})
		const image = "127.0.0.1:5000/busybox:1"
		runtime.AddRemoteImage(image, crifake.RemoteImage{})
		return conformance.Subject{
			Runtime: runtime, Other: runtime.For("n2"), Node: "n1",
			Image: image, MissingImage: "127.0.0.1:5000/missing:1", LogRoot: t.TempDir(),
			Restart: func(*testing.T) {
				runtime.SetDown(true)
				runtime.SetDown(false)
			},
		}
	})
}

// act does what the suite's scripts do.
func act(_ pod.Container, config *cri.ContainerConfig) crifake.Behavior {
	wait := crifake.Behavior{StopCode: 7, Exec: execute}
	switch script := config.Command[len(config.Command)-1]; script {
	case conformance.ScriptIgnore:
		wait.IgnoreStop = true
	case conformance.ScriptSucceed:
		return crifake.Behavior{Exits: true}
	case conformance.ScriptFail:
		return crifake.Behavior{Exits: true, After: time.Millisecond, ExitCode: 3}
	case conformance.ScriptPrint:
		wait.Stdout = []string{"hello", "world"}
	case conformance.CommandMissing:
		return crifake.Behavior{StartError: fault.New(fault.NotFound, "%s: no such file", script)}
	}
	return wait
}

func execute(_ context.Context, command []string) crifake.Exec {
	switch command[len(command)-1] {
	case conformance.ExecSpeak:
		return crifake.Exec{Stdout: "out\n", Stderr: "err\n", ExitCode: 5}
	case conformance.ExecHang:
		return crifake.Exec{Takes: time.Minute}
	case conformance.ExecFlood:
		return crifake.Exec{Stdout: string(make([]byte, 20000))}
	}
	return crifake.Exec{}
}
