package feed

import (
	"os"
	"strings"

	"github.com/podplane/podplane/internal/pod"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// bootID is the kernel's id of this boot; empty where it can't be read, and then every record counts.
func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}

// stale says whether a record is from an earlier boot: its volumes were mounted then, and are not now. volumed writes
// another one as soon as it has set them up again.
func stale(rec *podplanev1.VolumesRecord, boot string) bool {
	if boot == "" || rec.GetPhase() != podplanev1.VolumePhase_VOLUME_PHASE_READY {
		return false
	}
	for _, v := range rec.GetVolumes() {
		if id := v.GetAttributes()[pod.VolumeBootID]; id != "" && id != boot {
			return true
		}
	}
	return false
}
