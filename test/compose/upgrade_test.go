//go:build compose

package compose_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/podplane/podplane/internal/testkit"
)

const nextVersion = "next"

// testUpgrade builds the image with another version and replaces the services one by one, each by its own setting, while pods are created
// and deleted; and back again.
func testUpgrade(ctx context.Context, t *testing.T) {
	must(t)(composeWith(ctx, []string{"PODPLANE_VERSION=" + nextVersion}, "build", "keys"))
	pods := startSteady(ctx, t, 3)
	load := startLoad(ctx, t, "upgraded")
	for _, service := range services() {
		t.Setenv("PODPLANE_"+strings.ToUpper(service)+"_VERSION", nextVersion)
		must(t)(compose(ctx, "up", "-d", "--no-deps", "--no-build", service))
		running(ctx, t, service, nextVersion)
		pods.unharmed(ctx, t)
	}
	load.finish(ctx, t, lanes)
	for _, service := range services() {
		t.Setenv("PODPLANE_"+strings.ToUpper(service)+"_VERSION", "")
	}
	must(t)(compose(ctx, "up", "-d", "--no-build"))
	for _, service := range services() {
		running(ctx, t, service, "dev")
	}
	pods.unharmed(ctx, t)
	pods.remove(ctx, t)
}

// running waits until every registered replica of a service has the version, and is ready.
func running(ctx context.Context, t *testing.T, service, version string) {
	t.Helper()
	testkit.Eventually(ctx, t, fmt.Sprintf("%s runs in version %s", service, version), func(ctx context.Context) error {
		list, err := replicas(ctx)
		if err != nil {
			return err
		}
		found := 0
		for _, r := range list {
			if r.Service != service {
				continue
			}
			if r.Version != version || !r.Ready {
				return fmt.Errorf("%+v", r)
			}
			found++
		}
		if found != 1 {
			return fmt.Errorf("%d replicas", found)
		}
		return nil
	})
}
