package feed

import (
	"testing"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

func TestStale(t *testing.T) {
	t.Parallel()
	if bootID() == "" {
		t.Error("this boot has no id")
	}
	rec := func(phase podplanev1.VolumePhase, ids ...string) *podplanev1.VolumesRecord {
		r := &podplanev1.VolumesRecord{Phase: phase}
		for _, id := range ids {
			r.Volumes = append(r.Volumes, &podplanev1.VolumeState{Attributes: map[string]string{"bootID": id}})
		}
		return r
	}
	const ready, gone = podplanev1.VolumePhase_VOLUME_PHASE_READY, podplanev1.VolumePhase_VOLUME_PHASE_GONE
	for _, c := range []struct {
		rec  *podplanev1.VolumesRecord
		boot string
		want bool
	}{
		{rec(ready, "now", "now"), "now", false},
		{rec(ready, "now", "before"), "now", true},
		{rec(ready, ""), "now", false},
		{rec(ready, "before"), "", false},
		{rec(gone, "before"), "now", false},
	} {
		if got := stale(c.rec, c.boot); got != c.want {
			t.Errorf("%v in boot %q: %v", c.rec, c.boot, got)
		}
	}
}
