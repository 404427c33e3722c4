package bus

import (
	"testing"
	"testing/synctest"
	"time"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// TestVanishedServices has a replica that vanished with the server's memory stay
// known until it would have expired, and one that was taken back go at once.
func TestVanishedServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told [][]*podplanev1.ServiceRecord
		w := &serviceWatch{
			known: map[string]*podplanev1.ServiceRecord{}, doubtful: map[string]*time.Timer{},
			f: func(l []*podplanev1.ServiceRecord) { told = append(told, l) },
		}
		entry := func(instance string, rev uint64, deleted bool) Entry[*podplanev1.ServiceRecord] {
			e := Entry[*podplanev1.ServiceRecord]{Key: "s.n." + instance, Revision: rev, Deleted: deleted}
			if !deleted {
				e.Value = &podplanev1.ServiceRecord{Service: "s", Node: "n", Instance: instance}
			}
			return e
		}
		last := func() int {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(told[len(told)-1])
		}
		w.apply(entry("a", 1, false))
		w.apply(entry("b", 2, false))
		w.apply(entry("c", 3, false))
		if len(told) != 0 {
			t.Fatal("told before the present state was complete")
		}
		w.synced()
		if last() != 3 {
			t.Fatalf("%d replicas", last())
		}
		w.apply(entry("a", 0, true)) // the server lost its memory
		w.apply(entry("b", 0, true))
		w.apply(entry("c", 0, true))
		time.Sleep(RegistrationTTL / 2)
		w.apply(entry("a", 1, false)) // renewed
		w.apply(entry("c", 2, true))  // taken back
		if len(told) != 2 || last() != 2 {
			t.Fatalf("told %d times, %d replicas", len(told), last())
		}
		time.Sleep(RegistrationTTL)
		synctest.Wait()
		if last() != 1 {
			t.Fatalf("%d replicas after the time to live", last())
		}
		w.apply(entry("a", 0, true))
		w.close()
		time.Sleep(2 * RegistrationTTL)
		synctest.Wait()
		if last() != 1 {
			t.Fatal("told after the end")
		}
	})
}
