package reconcile_test

import (
	"testing"
	"time"

	"github.com/podplane/podplane/services/volumed/internal/reconcile"
)

// FuzzReconcile feeds the machine with any order of happenings and checks what must always hold.
func FuzzReconcile(f *testing.F) {
	f.Add([]byte{0, 2, 2, 6, 7, 9})
	f.Add([]byte{0, 3, 5, 4, 2, 8, 8, 9, 10, 2, 7})
	f.Fuzz(func(t *testing.T, steps []byte) {
		now := time.Unix(1_800_000_000, 0)
		rev := uint64(0)
		in := reconcile.Input{Wanted: true, Revision: func(string) uint64 { return rev }}
		in.Wishes = []reconcile.Wish{{Name: "a", Plugin: "p"}, {Name: "b", Plugin: "p", Object: "o"}}
		var p reconcile.Pod
		busy, tearing, tornDown := map[string]bool{}, false, false
		names := []string{"a", "b"}
		for _, s := range steps {
			before := p.Phase
			now = now.Add(time.Duration(s) * 50 * time.Millisecond)
			name := names[int(s/16)%2]
			switch s % 16 {
			case 0:
				in.Synced = true
			case 1:
				rev++
			case 2, 3:
				if busy[name] {
					delete(busy, name)
					reconcile.SetupDone(&p, name, reconcile.SetupResult{HostPath: "/" + name, Revision: rev}, now)
				}
			case 4, 5:
				if busy[name] {
					delete(busy, name)
					reconcile.SetupDone(&p, name, reconcile.SetupResult{Error: "no"}, now)
				}
			case 6:
				in.Terminated = true
			case 7:
				in.Wanted = false
			case 8:
				if tearing {
					tearing, tornDown = false, true
					reconcile.TeardownDone(&p, nil, "", now)
				}
			case 9:
				if tearing {
					tearing = false
					reconcile.TeardownDone(&p, map[string]string{"a": "busy"}, "", now)
				}
			case 10:
				p, busy, tearing = reconcile.Restore(p.Record(), true, now), map[string]bool{}, false
			default:
				now = now.Add(time.Minute)
			}
			d := reconcile.Reconcile(&p, in, now)
			if p.Phase < before {
				t.Fatalf("phase went from %s back to %s", before, p.Phase)
			}
			if !in.Synced && (len(d.Setup) > 0 || d.Teardown || d.Forget) {
				t.Fatalf("acted before everything was read: %+v", d)
			}
			for _, n := range d.Setup {
				if busy[n] || tearing || in.Terminated || !in.Wanted {
					t.Fatalf("set up %s: busy %v, tearing down %v, terminated %v, wanted %v", n, busy[n], tearing, in.Terminated, in.Wanted)
				}
				busy[n] = true
			}
			if d.Teardown {
				if tearing || len(busy) > 0 || in.Wanted && !in.Terminated {
					t.Fatalf("tear down: tearing down %v, busy %v", tearing, busy)
				}
				tearing = true
			}
			if (p.Phase == reconcile.Gone || d.Forget) && !tornDown {
				t.Fatal("gone without a teardown that succeeded")
			}
			if !d.Wake.IsZero() && d.Wake.Before(now) {
				t.Fatalf("wake %s ago", now.Sub(d.Wake))
			}
		}
	})
}
