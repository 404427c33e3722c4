package up

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSettingsOfRunningPodsAreRemembered(t *testing.T) {
	first := Config{Root: filepath.Join(t.TempDir(), "root"), Node: "a", CgroupRoot: "/a", PodLogDir: "/logs"}
	none := func(string) bool { return false }
	if err := first.recall(none); err != nil || first.Node != "a" {
		t.Fatalf("without a memory: %+v, %v", first, err)
	}
	if err := first.remember(); err != nil {
		t.Fatal(err)
	}
	renamed := Config{Root: first.Root, Node: "b", CgroupRoot: "/", PodLogDir: "/var/log/pods"}
	if err := renamed.recall(none); err != nil || renamed.Node != "a" || renamed.CgroupRoot != "/a" || renamed.PodLogDir != "/logs" {
		t.Errorf("a host with another name: %+v, %v", renamed, err)
	}
	told := Config{Root: first.Root, Node: "b"}
	err := told.recall(func(flag string) bool { return flag == "node" })
	if err == nil || !strings.Contains(err.Error(), `--node "b"`) || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("another node in the same root: %v", err)
	}
	if err := first.forget(); err != nil {
		t.Fatal(err)
	}
	if err := told.recall(func(string) bool { return true }); err != nil || told.Node != "b" {
		t.Errorf("when all pods are gone: %+v, %v", told, err)
	}
	if err := os.WriteFile(first.memoryFile(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := told.recall(none); err == nil || !strings.Contains(err.Error(), first.memoryFile()) {
		t.Errorf("a broken file: %v", err)
	}
}
