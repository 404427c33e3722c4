package prober

import (
	"fmt"
	"math"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/services/prober/internal/priority"
)

// BenchmarkLateness makes 330 HTTP probes a second against an application in this process while twice as many processes
// as there are processors keep them busy, and reports how late the probes were. Run it with -benchtime 10s or more.
func BenchmarkLateness(b *testing.B) {
	const pods = 330
	r := newRig(b)
	registry := prometheus.NewRegistry()
	r.registry = registry
	if err := priority.Set(DefaultConfig().Nice); err != nil {
		b.Fatal(err)
	}
	r.run(nil)
	a := newApp(b)
	for i := range pods {
		uid := fmt.Sprint("p", i)
		r.put(uid, corev1.Container{LivenessProbe: a.probe()})
		r.running(uid, "c1")
	}
	r.await(fmt.Sprint("p", pods-1), "liveness", "SUCCESS", on("c1", ok))
	for range 2 * runtime.NumCPU() {
		cmd := exec.Command("nice", "-n", strconv.Itoa(-DefaultConfig().Nice), "sh", "-c", "while :; do :; done") // back at 0
		cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	before := lateness(b, registry)
	hits := a.hits.Load()
	started := time.Now()
	for b.Loop() {
		time.Sleep(time.Second) // the measured time is the probes', not ours
	}
	after := lateness(b, registry)
	for _, q := range []float64{0.5, 0.99, 1} {
		b.ReportMetric(quantile(before, after, q)*1000, fmt.Sprintf("ms-late-p%g", q*100))
	}
	b.ReportMetric(float64(a.hits.Load()-hits)/time.Since(started).Seconds(), "probes/s")
}

func lateness(b *testing.B, g prometheus.Gatherer) *dto.Histogram {
	b.Helper()
	families, err := g.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "podplane_prober_lateness_seconds" {
			return f.GetMetric()[0].GetHistogram()
		}
	}
	b.Fatal("no such metric")
	return nil
}

// quantile is the upper bound of the bucket in which the quantile of what was counted in between lies.
func quantile(before, after *dto.Histogram, q float64) float64 {
	want := uint64(math.Ceil(float64(after.GetSampleCount()-before.GetSampleCount()) * q))
	for i, bucket := range after.GetBucket() {
		if bucket.GetCumulativeCount()-before.GetBucket()[i].GetCumulativeCount() >= want {
			return bucket.GetUpperBound()
		}
	}
	return math.Inf(1)
}
