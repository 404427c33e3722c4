package prober

import (
	"context"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/bus/embedded"
)

// TestBusAway takes the bus away: probing goes on, and what was found meanwhile is told when it is back.
func TestBusAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := newApp(t)
	r.child()
	r.put("u1", corev1.Container{ReadinessProbe: a.probe()})
	r.running("u1", "c1")
	r.await("u1", "readiness", "SUCCESS", on("c1", ok))

	u, err := url.Parse(r.server.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	host, portText, err := net.SplitHostPort(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.server.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	before := a.hits.Load()
	a.ill.Store(true)
	for deadline := time.Now().Add(patience); a.hits.Load() < before+3; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("probing stopped with the bus")
		}
	}
	r.server, err = embedded.Start(t.Context(), embedded.Options{StoreDir: filepath.Join(r.dir, "nats"), Host: host, Port: port})
	if err != nil {
		t.Fatal(err)
	}
	r.reconnect()
	r.await("u1", "readiness", "FAILURE", on("c1", bad))
}
