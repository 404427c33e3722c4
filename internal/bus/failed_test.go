package bus_test

import (
	"context"
	"strings"
	"testing"

	"github.com/podplane/podplane/internal/bus"
)

// TestFailedTraces has every service tell the others of a trace, under the permissions that it has.
func TestFailedTraces(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	type told struct{ to, id string }
	heard := make(chan told, 256)
	var tellers []account
	for _, a := range securedBus(t) {
		if a.service == bus.ServiceCLI {
			continue
		}
		tellers = append(tellers, a)
		if err := a.c.HearFailedTraces(func(id string) { heard <- told{a.service, id} }); err != nil {
			t.Fatal(err)
		}
	}
	// A subscription stands when the connection has made a round trip after it.
	for _, a := range tellers {
		if _, err := bus.Open(ctx, a.c, bus.Services); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range tellers {
		if err := a.c.TellFailedTrace("of " + a.service); err != nil {
			t.Fatal(err)
		}
		if err := a.c.TellFailedTrace(strings.Repeat("x", 1000)); err != nil {
			t.Fatal(err)
		}
	}
	missing := map[told]bool{}
	for _, from := range tellers {
		for _, to := range tellers {
			missing[told{to.service, "of " + from.service}] = true
		}
	}
	for len(missing) > 0 {
		select {
		case h := <-heard:
			if strings.HasPrefix(h.id, "x") {
				t.Fatalf("%s heard of something that is no trace id", h.to)
			}
			delete(missing, h)
		case <-ctx.Done():
			t.Fatalf("not heard: %v", missing)
		}
	}
}
