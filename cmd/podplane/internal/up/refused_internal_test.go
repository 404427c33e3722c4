package up

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func ended(t *testing.T, code string) error {
	t.Helper()
	err := exec.Command("/bin/sh", "-c", "exit "+code).Run()
	if err == nil {
		t.Fatal("no exit code")
	}
	return err
}

// program stands for the binary: it answers --check-config as told.
func program(t *testing.T, check string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "podplane")
	if err := os.WriteFile(name, []byte("#!/bin/sh\nfor a; do [ \"$a\" = --check-config ] && { "+check+"; }; done\nexit 9\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestOnlySettingsThatAreRefusedStopUp(t *testing.T) {
	refuse, take := program(t, `echo "podplane $1: logLevel: Unsupported value" >&2; exit 2`), program(t, "exit 0")
	for _, tc := range []struct {
		name, self, service, code string
		ready                     bool
		want                      string
	}{
		{"refused settings", refuse, "syncd", "2", false, "podplane syncd: logLevel: Unsupported value"},
		{"a crash", take, "syncd", "2", false, ""},
		{"another failure", refuse, "syncd", "1", false, ""},
		{"no service", refuse, "nats", "2", false, ""},
		{"after all were ready", refuse, "syncd", "2", true, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &stack{self: tc.self}
			s.ready.Store(tc.ready)
			err := s.refused(t.Context(), []string{tc.service, "--log-level", "loud"}, ended(t, tc.code))
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("refused() = %v, want %q", err, tc.want)
			}
		})
	}
}

// TestABusThatIsNamedMayHaveOurAddress: the default address is where a NATS server of somebody else's usually is.
func TestABusThatIsNamedMayHaveOurAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c := Config{Listen: "127.0.0.1:0", NATSListen: l.Addr().String()}
	if _, err := c.withPorts(); err == nil || !strings.Contains(err.Error(), "--nats-listen") {
		t.Errorf("an address that is taken: %v", err)
	}
	c.NATSURL = "nats://" + l.Addr().String()
	if _, err := c.withPorts(); err != nil {
		t.Errorf("the address of the bus that is named: %v", err)
	}
}
