package harness

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Life is what stays of a pod that has to survive: its container "app" is neither restarted nor replaced, and its Ready does not flip.
type Life struct {
	UID, Container, IP string
	Restarts           int32
	ReadySince         time.Time
}

// LifeOf is the life of a pod that has been Ready, as its status tells.
func LifeOf(p *corev1.Pod) Life {
	l := Life{UID: string(p.UID), Container: ContainerID(p, "app"), IP: p.Status.PodIP, Restarts: p.Status.ContainerStatuses[0].RestartCount}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			l.ReadySince = c.LastTransitionTime.Time
		}
	}
	return l
}
