package controller_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/volumed/internal/controller"
)

func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := controller.NewMetrics()
		c := controller.New(controller.Config{
			Node: "node", Disk: newDisk(), Writer: &records{last: map[string]*podplanev1.VolumesRecord{}}, Events: &sink{},
			Log: slog.New(slog.DiscardHandler), Metrics: m,
		})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = c.Run(ctx) }()
		defer func() { cancel(); <-done }()
		c.Synced(controller.SourcePods)
		c.Synced(controller.SourceStatus)
		c.PodSeen(pod("1", "a", "b"), nil)
		synctest.Wait()
		expect(t, m, 2, 2)
		c.Status("1", true)
		c.PodGone("1")
		synctest.Wait()
		expect(t, m, 0, 0)
		if n := testutil.CollectAndCount(m, "storage_operation_duration_seconds"); n != 2 {
			t.Errorf("%d kinds of operations, want set-up and teardown", n)
		}
	})
}

func expect(t *testing.T, m *controller.Metrics, desired, actual int) {
	t.Helper()
	want := fmt.Sprintf(`# HELP volume_manager_total_volumes Number of volumes: wished (desired_state_of_world), and set up (actual_state_of_world).
# TYPE volume_manager_total_volumes gauge
volume_manager_total_volumes{plugin_name="kubernetes.io/empty-dir",state="actual_state_of_world"} %d
volume_manager_total_volumes{plugin_name="kubernetes.io/empty-dir",state="desired_state_of_world"} %d
`, actual, desired)
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), "volume_manager_total_volumes"); err != nil {
		t.Error(err)
	}
}
