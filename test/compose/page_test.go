//go:build compose

package compose_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/podplane/podplane/test/harness"
)

// TestPage runs docs/compose.md, block by block, as a user would in the project's directory.
func TestPage(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	text, err := os.ReadFile("../../docs/compose.md")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(logs())
		}
		if out, err := compose(context.WithoutCancel(ctx), "down", "-v", "--timeout", "5"); err != nil {
			t.Errorf("down -v: %v: %s", err, out)
		}
	})
	steps := harness.Steps(string(text))
	if len(steps) < 5 {
		t.Fatalf("the page has %d blocks: is it read right?", len(steps))
	}
	variables := filepath.Join(t.TempDir(), "variables")
	for _, step := range steps {
		script := "set -e\n[ ! -f " + variables + " ] || . " + variables + "\n" + step.Commands + "\nexport -p | grep PODPLANE_ > " + variables + " || true\n"
		cmd := exec.CommandContext(ctx, "bash", "-c", script)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "PATH=/usr/bin:"+os.Getenv("PATH"))
		began := time.Now()
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("compose.md:%d: %v\n%s\n%s\n%s", step.Line, err, step.Commands, out, stderr(err))
		}
		t.Logf("compose.md:%d took %s", step.Line, time.Since(began).Round(100*time.Millisecond))
		if step.Checked && !harness.Matches(step.Output, string(out)) {
			t.Fatalf("compose.md:%d printed\n%s\nand the page says\n%s", step.Line, out, step.Output)
		}
	}
}
