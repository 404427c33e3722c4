package kernel_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podplane/podplane/services/syncd/internal/kernel"
)

// sys makes a /proc/sys in which memory is not overcommitted.
func sys(t *testing.T) string {
	dir := t.TempDir()
	for file, value := range map[string]string{
		"vm/overcommit_memory": "0", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		path := filepath.Join(dir, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(value+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func overcommit(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "vm/overcommit_memory"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func TestApply(t *testing.T) {
	dir := sys(t)
	if err := kernel.Apply(dir, kernel.Leave); err != nil || overcommit(t, dir) != "0" {
		t.Errorf("leave: %v, overcommit_memory is %s", err, overcommit(t, dir))
	}
	err := kernel.Apply(dir, kernel.Check)
	if err == nil || !strings.Contains(err.Error(), "vm.overcommit_memory is 0, want 1") || strings.Contains(err.Error(), "kernel.panic") || overcommit(t, dir) != "0" {
		t.Errorf("check: %v, overcommit_memory is %s", err, overcommit(t, dir))
	}
	if err := kernel.Apply(dir, kernel.Set); err != nil || overcommit(t, dir) != "1" {
		t.Errorf("set: %v, overcommit_memory is %s", err, overcommit(t, dir))
	}
	if err := kernel.Apply(dir, kernel.Check); err != nil {
		t.Errorf("check after set: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "kernel/panic")); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []kernel.Mode{kernel.Check, kernel.Set} {
		if err := kernel.Apply(dir, mode); err == nil || !strings.Contains(err.Error(), "kernel/panic") {
			t.Errorf("%s without a file: %v", mode, err)
		}
	}
}
