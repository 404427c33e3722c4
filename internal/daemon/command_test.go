package daemon_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podplane/podplane/internal/daemon"
)

type config struct {
	daemon.Config
	Token string `json:"token" secret:"true" usage:"a secret"`
	Size  int    `json:"size" usage:"a size"`
}

func (c *config) Validate(path *field.Path) field.ErrorList {
	if c.Size < 0 {
		return field.ErrorList{field.Invalid(path.Child("size"), c.Size, "must not be negative")}
	}
	return nil
}

func service(run func(context.Context, config, daemon.Deps) error) daemon.Service[config] {
	return daemon.Service[config]{
		Name: "testd", Short: "A service for tests.", Run: run,
		Defaults: func() config { return config{Config: daemon.DefaultConfig(), Token: "hush"} },
	}
}

func execute(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := daemon.Command(service(func(context.Context, config, daemon.Deps) error {
		t.Error("the service ran")
		return nil
	}))
	var out, errs bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	return daemon.Execute(t.Context(), cmd), out.String(), errs.String()
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"check", []string{"--check-config", "--node=n1"}, daemon.ExitOK, "", ""},
		{"print masks", []string{"--print-config", "--node=n1"}, daemon.ExitOK, `token: '********'`, ""},
		{"print fills in", []string{"--print-config", "--node=n1"}, daemon.ExitOK, "node: n1", ""},
		{"version", []string{"--version"}, daemon.ExitOK, "testd version dev", ""},
		{"own rule", []string{"--size=-1"}, daemon.ExitUsage, "", "testd: configuration \"testd\" is invalid: size: Invalid value: -1: must not be negative"},
		{"log level", []string{"--log-level=loud", "--check-config"}, daemon.ExitUsage, "", `logLevel: Unsupported value: "loud": supported values: "debug", "info", "warn", "error"`},
		{"log format", []string{"--log-format=xml", "--check-config"}, daemon.ExitUsage, "", `logFormat: Unsupported value: "xml"`},
		{"common rule", []string{"--http-listen=0.0.0.0:80"}, daemon.ExitUsage, "", "httpListen: Invalid value: must be a loopback address"},
		{"both rules", []string{"--size=-1", "--node=A_B"}, daemon.ExitUsage, "", "node: Invalid value"},
		{"missing file", []string{"--config=/does/not/exist"}, daemon.ExitUsage, "", "/does/not/exist"},
		{"insecure", []string{"--check-config", "--http-listen=0.0.0.0:80", "--insecure-listen"}, daemon.ExitOK, "", ""},
		{"unknown flag", []string{"--nope"}, daemon.ExitUsage, "", "unknown flag: --nope"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := execute(t, c.args...)
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || strings.Contains(stdout+stderr, "hush") {
				t.Errorf("exit %d\nstdout %s\nstderr %s", code, stdout, stderr)
			}
		})
	}
}
