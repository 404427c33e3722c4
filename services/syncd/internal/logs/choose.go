package logs

import (
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/fault"
)

// choose finds the container whose log is asked for, in Kubernetes' words.
func choose(pod *v1.Pod, name string) (string, error) {
	regular, initial := names(pod.Spec.Containers), names(pod.Spec.InitContainers)
	if name == "" {
		if len(regular) == 1 {
			return regular[0], nil
		}
		msg := "a container name must be specified for pod " + pod.Name + ", choose one of: [" + strings.Join(regular, " ") + "]"
		if len(initial) > 0 {
			msg += " or one of the init containers: [" + strings.Join(initial, " ") + "]"
		}
		return "", fault.New(fault.BadRequest, "%s", msg)
	}
	for i := range pod.Spec.EphemeralContainers {
		initial = append(initial, pod.Spec.EphemeralContainers[i].Name)
	}
	for _, n := range append(initial, regular...) {
		if n == name {
			return name, nil
		}
	}
	return "", fault.New(fault.BadRequest, "container %s is not valid for pod %s", name, pod.Name)
}

func names(containers []v1.Container) []string {
	list := make([]string, 0, len(containers))
	for _, c := range containers {
		list = append(list, c.Name)
	}
	return list
}

func find(s *v1.PodStatus, container string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == container {
				return &list[i]
			}
		}
	}
	return nil
}

// instance finds the number of the instance whose log is asked for: its restart count. While a container waits to be started again its
// last instance is the one before.
func instance(pod, container string, s *v1.PodStatus, previous bool) (int32, error) {
	c := find(s, container)
	if c == nil {
		if previous {
			return 0, fault.New(fault.BadRequest, "previous terminated container %q in pod %q not found", container, pod)
		}
		return 0, fault.New(fault.BadRequest, "container %q in pod %q is waiting to start: ContainerCreating", container, pod)
	}
	started := c.State.Running != nil || c.State.Terminated != nil
	switch {
	case previous && c.LastTerminationState.Terminated == nil:
		return 0, fault.New(fault.BadRequest, "previous terminated container %q in pod %q not found", container, pod)
	case previous && started:
		return max(c.RestartCount-1, 0), nil
	case started, c.LastTerminationState.Terminated != nil:
		return c.RestartCount, nil
	}
	why := "ContainerCreating"
	if w := c.State.Waiting; w != nil && w.Reason != "" {
		why = w.Reason
	}
	switch why {
	case "ErrImagePull":
		why = "image can't be pulled"
	case "ImagePullBackOff":
		why = "trying and failing to pull image"
	}
	return 0, fault.New(fault.BadRequest, "container %q in pod %q is waiting to start: %s", container, pod, why)
}
