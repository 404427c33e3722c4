package e2e_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// TestRotateKeys changes the services' keys for the bus under a running pod, then that of the records: no container notices, and the former keys
// open nothing.
func TestRotateKeys(t *testing.T) {
	s := newStack(t)
	ctx := testContext(t)
	if _, err := s.Apply(ctx, ns(t), manifest("one", "\n  containers:\n  - {name: main, image: $IMAGE, args: [sleep, forever]}\n")); err != nil {
		t.Fatal(err)
	}
	p, err := s.WaitReady(ctx, ns(t), "one")
	if err != nil {
		t.Fatal(err)
	}
	running := harness.ContainerID(p, "main")
	before, err := s.Services(ctx)
	if err != nil {
		t.Fatal(err)
	}
	former := filepath.Join(t.TempDir(), "admin.nk")
	seed, err := os.ReadFile(filepath.Join(s.RunDir(), "keys", "admin.nk"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, former, string(seed))

	rotate := append([]string{"keys", "rotate"}, hostArgs(s)...)
	if out := mustCommand(t, s, rotate...); !strings.Contains(out, "6 services use them") {
		t.Errorf("keys rotate says %s", out)
	}
	after, err := s.Services(ctx)
	if err != nil || len(after) != len(before) {
		t.Fatalf("%v %v", after, err)
	}
	for i := range after {
		if after[i].PID != before[i].PID || !after[i].Ready {
			t.Errorf("%s was %s, is %s, ready: %v", after[i].Service, before[i].PID, after[i].PID, after[i].Ready)
		}
	}
	if _, err := s.Apply(ctx, ns(t), manifest("two", "\n  containers:\n  - {name: main, image: $IMAGE, args: [sleep, forever]}\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WaitReady(ctx, ns(t), "two"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "saved")
	byOld := append([]string{"backup", file, "--nats-url", s.Info().NATSURL, "--nats-nkey-seed", former}, hostArgs(s)...)
	if out, err := command(t, s, byOld...); err == nil || !strings.Contains(out, "Authorization Violation") {
		t.Errorf("the former administrator's key: %v %s", err, out)
	}

	records := append([]string{"keys", "rotate-records"}, hostArgs(s)...)
	if out, err := command(t, s, records...); err == nil || !strings.Contains(out, "up already") {
		t.Errorf("the key of the records under a running Podplane: %v %s", err, out)
	}
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(s.Root(), "nats.key")
	old, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	mustCommand(t, s, records...)
	if now, err := os.ReadFile(key); err != nil || string(now) == string(old) {
		t.Errorf("the key of the records is the former: %v", err)
	}
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	p, err = s.WaitReady(ctx, ns(t), "one")
	if err != nil {
		t.Fatal(err)
	}
	if harness.ContainerID(p, "main") != running || p.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the container is another: %+v", p.Status.ContainerStatuses)
	}
}

// TestRotateCertificates changes the authorities, every certificate, and a token, under a running Podplane whose processes talk TLS.
func TestRotateCertificates(t *testing.T) {
	g := newGuarded(t)
	certs := filepath.Join(g.dir, "tls")
	before := doorCertificate(t, g)
	pids := pidsOf(t, g)
	g.podplane(t, g.Binary(), "certs", "--dir", certs, "--rotate-ca")
	g.podplane(t, g.Binary(), "certs", "client", "carol", "--group", "ops", "--dir", certs)
	g.client = g.newClient(t, nil)
	eventually(t, testContext(t), "the front door shows its new certificate", func() bool { return doorCertificate(t, g) != before })

	// The former authorities go: nobody shows, or takes, one of their certificates any more, once connections are made anew.
	for _, ca := range []string{"ca", "client-ca"} {
		onlyFirst(t, filepath.Join(certs, ca+".crt"))
	}
	if err := g.Kill("nats"); err != nil {
		t.Fatal(err)
	}
	g.client = g.newClient(t, nil)
	waitAllReady(t, g)
	for name, pid := range pidsOf(t, g) {
		if pids[name] != pid && name != "nats" {
			t.Errorf("%s was started again", name)
		}
	}
	carol, err := tls.LoadX509KeyPair(filepath.Join(certs, "carol.crt"), filepath.Join(certs, "carol.key"))
	if err != nil {
		t.Fatal(err)
	}
	if code, body := g.call(t, g.newClient(t, []tls.Certificate{carol}), "", "GET", "/api/v1/pods", ""); code != 200 {
		t.Errorf("carol with her new certificate: %d %s", code, body)
	}
	podBehindTheDoor(t, g)
	rotateToken(t, g)
}

// rotateToken gives a user a second token, then takes the first back.
func rotateToken(t *testing.T, g *guarded) {
	file := filepath.Join(g.dir, "tokens.yaml")
	first := g.tokens["viewer"]
	second := strings.TrimSpace(g.podplane(t, g.Binary(), "token", "create", "viewer", "--file", file))
	use := func(token string) func() bool {
		return func() bool {
			g.tokens["viewer"] = token
			code, _ := g.call(t, g.client, "viewer", "GET", "/api/v1/namespaces/team/pods", "")
			return code == 200
		}
	}
	eventually(t, testContext(t), "the second token is good", use(second))
	if !use(first)() {
		t.Error("the first token is refused before it is revoked")
	}
	g.podplane(t, g.Binary(), "token", "revoke", strings.Split(first, "_")[1], "--file", file)
	eventually(t, testContext(t), "the first token is refused", func() bool { return !use(first)() })
	if !use(second)() {
		t.Error("the second token went with the first")
	}
}

// onlyFirst leaves the first certificate of a file.
func onlyFirst(t *testing.T, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, rest := pem.Decode(data)
	if block == nil || len(rest) == 0 {
		t.Fatalf("%s does not hold two certificates", file)
	}
	write(t, file, string(pem.EncodeToMemory(block)))
}

// doorCertificate is the serial number of what the front door shows.
func doorCertificate(t *testing.T, g *guarded) string {
	t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(g.Server(), "https://"), &tls.Config{RootCAs: g.roots(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

func pidsOf(t *testing.T, g *guarded) map[string]int {
	t.Helper()
	pids := map[string]int{}
	for _, name := range harness.Services {
		pid, err := g.PID(name)
		if err != nil {
			t.Fatal(err)
		}
		pids[name] = pid
	}
	return pids
}

func waitAllReady(t *testing.T, g *guarded) {
	t.Helper()
	testkit.Eventually(testContext(t), t, "all services are ready", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, "GET", g.Server()+"/podplane/v1/services", nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+g.tokens["owner"])
		resp, err := g.client.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		var list struct{ Services []harness.Service }
		if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list.Services) != len(harness.Services) {
			return fmt.Errorf("%d services, %w", len(list.Services), err)
		}
		for _, s := range list.Services {
			if !s.Ready {
				return fmt.Errorf("%s is not ready", s.Service)
			}
		}
		return nil
	})
}
