package supervise

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRotateMovesOnlyWhatIsTooLarge(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.log")
	if err := rotate(file, 10); err != nil {
		t.Fatalf("rotate of a file that is not there: %v", err)
	}
	w, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	write := func(s string) {
		t.Helper()
		if _, err := w.WriteString(s); err != nil {
			t.Fatal(err)
		}
		if err := rotate(file, 10); err != nil {
			t.Fatal(err)
		}
	}
	write("short")
	if got := read(t, file); got != "short" {
		t.Errorf("log = %q after a rotation that was not due", got)
	}
	write(strings.Repeat("x", 10))
	if got, old := read(t, file), read(t, file+".1"); got != "" || old != "short"+strings.Repeat("x", 10) {
		t.Errorf("log = %q, old log = %q", got, old)
	}
	write("more")
	if got := read(t, file); got != "more" {
		t.Errorf("log = %q, want what was written after the rotation, at the start of the file", got)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
