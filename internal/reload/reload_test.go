package reload_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podplane/podplane/internal/reload"
)

var errBad = errors.New("bad")

// joined parses files by joining them; "bad" can't be parsed.
func joined(contents [][]byte) (string, error) {
	var b strings.Builder
	for _, c := range contents {
		b.Write(c)
	}
	if strings.Contains(b.String(), "bad") {
		return "", errBad
	}
	return b.String(), nil
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// becomes waits until the value is want, at most a second.
func becomes(t *testing.T, v *reload.Value[string], want string) {
	t.Helper()
	deadline := time.Now().Add(time.Second)
	for v.Get() != want {
		if time.Now().After(deadline) {
			t.Fatalf("%q after a second, want %q", v.Get(), want)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestChangesAreSeenAndFaultsAreNot(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "1")
	write(t, b, "2")
	var told atomic.Int32
	v, err := reload.Open(joined, func(error) { told.Add(1) }, a, b)
	if err != nil {
		t.Fatal(err)
	}
	if got := v.Get(); got != "12" {
		t.Fatalf("%q", got)
	}
	write(t, b, "3")
	becomes(t, v, "13")
	write(t, b, "4") // at once, of the same size
	becomes(t, v, "14")

	write(t, a, "bad")
	for v.Err() == nil {
		if got := v.Get(); got != "14" {
			t.Fatalf("a fault gave %q", got)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if !errors.Is(v.Err(), errBad) {
		t.Error(v.Err())
	}
	if err := os.Remove(a); err != nil {
		t.Fatal(err)
	}
	for !errors.Is(v.Err(), os.ErrNotExist) {
		if got := v.Get(); got != "14" {
			t.Fatalf("a missing file gave %q", got)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if n := told.Load(); n != 2 {
		t.Errorf("told %d times of two faults", n)
	}
	write(t, a, "5")
	becomes(t, v, "54")
	if v.Err() != nil {
		t.Error(v.Err())
	}
}

func TestRefusesAtTheStart(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	write(t, open, "1")
	if err := os.Chmod(open, 0o602); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(dir, "large")
	write(t, large, strings.Repeat("x", reload.MaxBytes+1))
	bad := filepath.Join(dir, "spoiled")
	write(t, bad, "bad")
	for _, p := range []string{filepath.Join(dir, "missing"), open, large, bad, dir} {
		if _, err := reload.Open(joined, nil, p); err == nil || !strings.Contains(err.Error(), filepath.Base(p)) {
			t.Errorf("%s: %v", p, err)
		}
	}
}
