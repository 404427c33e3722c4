package plan

import (
	"hash/fnv"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/pod"
)

const (
	// AnnotationRestartDelay is put on containers: the back-off that is due when the container ends.
	AnnotationRestartDelay = "podplane.io/restart-delay"
	// AnnotationStartDecided is put on containers of pods whose containers may all be restarted together: when their start was decided, which can be
	// long before they are there (RFC 3339).
	AnnotationStartDecided = "podplane.io/start-decided"

	firstRestartDelay = 10 * time.Second
	maxRestartDelay   = 300 * time.Second
	// restartDelayReset: a container that lived this long starts a new series.
	restartDelayReset = 600 * time.Second

	// imageBackoffShown: how long after a failed pull its error is the waiting reason, before the back-off is.
	imageBackoffShown = 3 * time.Second
)

// hashVersion is part of every hash: a change of what is hashed gets a new version, and containers with another version are left alone.
const hashVersion = "v1-"

// Hash identifies the definition of a container: a running container whose hash differs is restarted. Only name and image count.
func Hash(c *v1.Container) string {
	h := fnv.New32a()
	for _, s := range []string{c.Name, c.Image} {
		_, _ = h.Write([]byte(s)) // a hash.Hash never fails
		_, _ = h.Write([]byte{0})
	}
	return hashVersion + strconv.FormatUint(uint64(h.Sum32()), 16)
}

// changed says whether the container was made from another definition than the present one. A hash of another version says nothing.
func changed(spec *v1.Container, c *pod.Container) bool {
	have := c.Annotations[pod.AnnotationContainerHash]
	if len(have) < len(hashVersion) || have[:len(hashVersion)] != hashVersion {
		return false
	}
	return have != Hash(spec)
}

// restartDelay returns the back-off that is due after the end of the container, and the one to put on its successor.
func (in *Input) restartDelay(spec *v1.Container, dead *pod.Container) (due, next time.Duration) {
	due = in.owed(dead)
	if due == 0 || changed(spec, dead) || resized(in.Pod, spec, dead) {
		return 0, min(firstRestartDelay, in.maxDelay())
	}
	return due, min(2*due, in.maxDelay())
}

// owed is the back-off that was put on the container and is due after its end, whatever became of its definition since.
func (in *Input) owed(dead *pod.Container) time.Duration {
	due, err := time.ParseDuration(dead.Annotations[AnnotationRestartDelay])
	if err != nil || due <= 0 || dead.FinishedAt.Sub(dead.CreatedAt) > restartDelayReset {
		return 0
	}
	return min(due, in.maxDelay())
}

func (in *Input) maxDelay() time.Duration {
	if in.MaxRestartDelay <= 0 {
		return maxRestartDelay
	}
	return in.MaxRestartDelay
}

func resized(p *v1.Pod, spec *v1.Container, dead *pod.Container) bool {
	cpu, memory := Resized(p, spec, dead)
	return cpu || memory
}

// ImageDelay is the back-off after so many failed pulls in a row.
func ImageDelay(failures int) time.Duration {
	return doubling(10*time.Second, 300*time.Second, failures)
}

// CreateDelay is the back-off after so many failed attempts in a row to create a sandbox or a container.
func CreateDelay(failures int) time.Duration { return doubling(time.Second, 60*time.Second, failures) }

func doubling(first, limit time.Duration, failures int) time.Duration {
	if failures <= 0 {
		return 0
	}
	d := first
	for i := 1; i < failures && d < limit; i++ {
		d *= 2
	}
	return min(d, limit)
}
