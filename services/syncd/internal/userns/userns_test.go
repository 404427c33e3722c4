package userns_test

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/podplane/podplane/services/syncd/internal/userns"
)

// TestRangesAreDisjointAndKept asks for many at once, twice.
func TestRangesAreDisjointAndKept(t *testing.T) {
	root := t.TempDir()
	const pods = 50
	var firsts [2][pods]uint32
	for round := range firsts {
		var wg sync.WaitGroup
		for i := range pods {
			uid := strconv.Itoa(i)
			if err := os.MkdirAll(filepath.Join(root, "pods", uid), 0o750); err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				m, err := userns.Ranges{Root: root}.Get(uid)
				if err != nil {
					t.Error(err)
					return
				}
				if len(m) != 1 || m[0].ContainerID != 0 || m[0].Length != userns.Length || m[0].HostID < userns.Length || m[0].HostID%userns.Length != 0 {
					t.Errorf("range %+v", m)
				}
				firsts[round][i] = m[0].HostID
			})
		}
		wg.Wait()
	}
	seen := make(map[uint32]bool)
	for i, f := range firsts[0] {
		if seen[f] {
			t.Errorf("range %d was given twice", f)
		}
		seen[f] = true
		if firsts[1][i] != f {
			t.Errorf("pod %d had %d and has %d", i, f, firsts[1][i])
		}
	}
}

// TestRangeIsFreeAgain gives a removed pod's range to the next one.
func TestRangeIsFreeAgain(t *testing.T) {
	root := t.TempDir()
	r := userns.Ranges{Root: root}
	get := func(uid string) uint32 {
		if err := os.MkdirAll(filepath.Join(root, "pods", uid), 0o750); err != nil {
			t.Fatal(err)
		}
		m, err := r.Get(uid)
		if err != nil {
			t.Fatal(err)
		}
		return m[0].HostID
	}
	a, b := get("a"), get("b")
	if err := os.Remove(r.File("a")); err != nil {
		t.Fatal(err)
	}
	if c := get("c"); c != a || c == b {
		t.Errorf("ranges %d and %d, then %d", a, b, c)
	}
	if err := os.WriteFile(r.File("b"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get("b"); err == nil {
		t.Error("a broken file is taken")
	}
}
