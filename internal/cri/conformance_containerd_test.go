package cri_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/cri/conformance"
	"github.com/podplane/podplane/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestConformance runs the suite against a real containerd of its own.
func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Subject {
		node := testkit.NewNode(t)
		connect := func(name string) *cri.Client {
			client, err := cri.Dial(t.Context(), node.Endpoint, cri.Options{Node: name})
			if err != nil {
				t.Fatalf("dial: %v", err)
			}
			t.Cleanup(func() {
				if err := client.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			return client
		}
		logs := filepath.Join(node.Dir, "logs")
		if err := os.MkdirAll(logs, 0o755); err != nil {
			t.Fatalf("make directory: %v", err)
		}
		return conformance.Subject{
			Runtime: connect("n1"), Other: connect("n2"), Node: "n1",
			Image: node.Registry.Name("busybox:1"), MissingImage: node.Registry.Name("missing:1"),
			LogRoot: logs, CgroupParent: node.CgroupParent,
			Restart: func(t *testing.T) {
				node.Kill(t)
				node.Restart(t)
			},
		}
	})
}
