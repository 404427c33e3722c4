package vm_test

import (
	"testing"
	"time"
)

// A machine emulates some 150 million instructions a second on a quiet host: what takes seconds outside takes minutes.
const patience = 40 * time.Minute

// corpusCases are the cases whose outcome depends on the version of cgroups or on the driver.
const corpusCases = "TestCorpus/^(qos-.*|memory-.*|hugepages|pid-limit|oom-killed|oom-score|resize-in-place|resize-restart|resources-init|runtime-class|pod-resources|delete)$"

var (
	corpus = suite{pkg: "./test/corpus", run: corpusCases, files: []string{"cases", "node"}, passes: []string{
		"TestCorpus/qos-guaranteed", "TestCorpus/qos-burstable", "TestCorpus/qos-best-effort", "TestCorpus/resources-init", "TestCorpus/pid-limit",
		"TestCorpus/memory-protection", "TestCorpus/memory-swap", "TestCorpus/hugepages", "TestCorpus/oom-killed", "TestCorpus/resize-in-place",
		"TestCorpus/pod-resources",
	}}
	limits   = suite{pkg: "./services/syncd/internal/cgroup", run: "TestKernel", passes: []string{"TestKernel/cgroupfs"}}
	pressure = suite{pkg: "./test/e2e", run: "^TestMemoryPressureEvicts$", passes: []string{"TestMemoryPressureEvicts"}}
	signals  = suite{pkg: "./services/evictd/internal/signals", run: ".", passes: []string{"TestThisHost"}}
)

// TestCgroupfs has no systemd: Podplane and the runtime make the cgroups themselves.
func TestCgroupfs(t *testing.T) {
	t.Parallel()
	run(t, machine{name: "cgroupfs", init: "/repo/guest.sh"}, limits, signals, corpus, pressure)
}

// TestSystemd is started by systemd, as most hosts are: it is asked for each cgroup.
func TestSystemd(t *testing.T) {
	t.Parallel()
	withSlices := limits
	withSlices.passes = []string{"TestKernel/cgroupfs", "TestKernel/systemd"}
	run(t, machine{name: "systemd", init: "/sbin/init", kernel: []string{"systemd.wants=podplane-test.service", "systemd.show_status=0"}}, withSlices, corpus)
}
