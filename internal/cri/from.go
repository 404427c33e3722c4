package cri

import (
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podplane/podplane/internal/pod"
)

// fromNanos takes CRI's time: 0 means "not yet".
func fromNanos(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

func fromSandbox(s *runtimeapi.PodSandbox) pod.Sandbox {
	m := s.GetMetadata()
	return pod.Sandbox{
		ID: s.GetId(), Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid(), Attempt: m.GetAttempt(),
		Ready:     s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY,
		CreatedAt: fromNanos(s.GetCreatedAt()), RuntimeHandler: s.GetRuntimeHandler(), Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
	}
}

func fromSandboxStatus(s *runtimeapi.PodSandboxStatus) pod.Sandbox {
	m, ns := s.GetMetadata(), s.GetLinux().GetNamespaces().GetOptions()
	sandbox := pod.Sandbox{
		ID: s.GetId(), Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid(), Attempt: m.GetAttempt(),
		Ready:     s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY,
		CreatedAt: fromNanos(s.GetCreatedAt()), RuntimeHandler: s.GetRuntimeHandler(), Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
		HostNetwork: ns.GetNetwork() == runtimeapi.NamespaceMode_NODE,
		HostPID:     ns.GetPid() == runtimeapi.NamespaceMode_NODE,
		HostIPC:     ns.GetIpc() == runtimeapi.NamespaceMode_NODE,
	}
	// A sandbox in the host's network has no addresses of its own, whatever a runtime reports.
	if ip := s.GetNetwork().GetIp(); ip != "" && !sandbox.HostNetwork {
		sandbox.IPs = append(sandbox.IPs, ip)
		for _, more := range s.GetNetwork().GetAdditionalIps() {
			sandbox.IPs = append(sandbox.IPs, more.GetIp())
		}
	}
	return sandbox
}

func fromContainerState(s runtimeapi.ContainerState) pod.ContainerState {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return pod.ContainerCreated
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return pod.ContainerRunning
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return pod.ContainerExited
	default:
		return pod.ContainerUnknown
	}
}

func fromContainer(c *runtimeapi.Container) pod.Container {
	labels := c.GetLabels()
	return pod.Container{
		ID: c.GetId(), Name: c.GetMetadata().GetName(), SandboxID: c.GetPodSandboxId(),
		PodUID: labels[pod.LabelPodUID], PodNamespace: labels[pod.LabelPodNamespace], PodName: labels[pod.LabelPodName],
		Attempt: c.GetMetadata().GetAttempt(), State: fromContainerState(c.GetState()), CreatedAt: fromNanos(c.GetCreatedAt()),
		Image: imageName(c.GetImage()), ImageRef: c.GetImageRef(), ImageID: c.GetImageId(), Labels: labels, Annotations: c.GetAnnotations(),
	}
}

func fromContainerStatus(c *runtimeapi.ContainerStatus) pod.Container {
	labels := c.GetLabels()
	ctr := pod.Container{
		ID: c.GetId(), Name: c.GetMetadata().GetName(),
		PodUID: labels[pod.LabelPodUID], PodNamespace: labels[pod.LabelPodNamespace], PodName: labels[pod.LabelPodName],
		Attempt: c.GetMetadata().GetAttempt(), State: fromContainerState(c.GetState()), CreatedAt: fromNanos(c.GetCreatedAt()),
		Image: imageName(c.GetImage()), ImageRef: c.GetImageRef(), ImageID: c.GetImageId(), Labels: labels, Annotations: c.GetAnnotations(),
		StartedAt: fromNanos(c.GetStartedAt()), FinishedAt: fromNanos(c.GetFinishedAt()), ExitCode: c.GetExitCode(),
		Reason: c.GetReason(), Message: c.GetMessage(), LogPath: c.GetLogPath(),
		Resources: fromResources(c.GetResources().GetLinux()),
	}
	if u := c.GetUser().GetLinux(); u != nil {
		ctr.User = &pod.LinuxUser{UID: u.GetUid(), GID: u.GetGid(), SupplementalGroups: u.GetSupplementalGroups()}
	}
	if c.GetStopSignal() != runtimeapi.Signal_RUNTIME_DEFAULT {
		ctr.StopSignal = signalSign.Replace(c.GetStopSignal().String())
	}
	if mounts := c.GetMounts(); len(mounts) > 0 {
		ctr.Mounts = make([]pod.Mount, 0, len(mounts))
		for _, m := range mounts {
			ctr.Mounts = append(ctr.Mounts, fromMount(m))
		}
	}
	return ctr
}

// imageName prefers what the user wrote.
func imageName(i *runtimeapi.ImageSpec) string {
	if i.GetUserSpecifiedImage() != "" {
		return i.GetUserSpecifiedImage()
	}
	return i.GetImage()
}

func fromMount(m *runtimeapi.Mount) pod.Mount {
	return pod.Mount{
		ContainerPath: m.GetContainerPath(), HostPath: m.GetHostPath(), ReadOnly: m.GetReadonly(), RecursiveReadOnly: m.GetRecursiveReadOnly(),
		SELinuxRelabel: m.GetSelinuxRelabel(), Propagation: pod.MountPropagation(m.GetPropagation()),
		UIDMappings: fromIDMappings(m.GetUidMappings()), GIDMappings: fromIDMappings(m.GetGidMappings()),
		Image: m.GetImage().GetImage(), ImageSubPath: m.GetImageSubPath(),
	}
}

func fromIDMappings(list []*runtimeapi.IDMapping) []pod.IDMapping {
	var mappings []pod.IDMapping
	for _, m := range list {
		mappings = append(mappings, pod.IDMapping{HostID: m.GetHostId(), ContainerID: m.GetContainerId(), Length: m.GetLength()})
	}
	return mappings
}

func fromResources(r *runtimeapi.LinuxContainerResources) *pod.LinuxResources {
	if r == nil {
		return nil
	}
	resources := &pod.LinuxResources{
		CPUPeriod: r.GetCpuPeriod(), CPUQuota: r.GetCpuQuota(), CPUShares: r.GetCpuShares(),
		MemoryLimitBytes: r.GetMemoryLimitInBytes(), MemorySwapLimit: r.GetMemorySwapLimitInBytes(), OOMScoreAdj: r.GetOomScoreAdj(),
		CPUSetCPUs: r.GetCpusetCpus(), CPUSetMems: r.GetCpusetMems(), Unified: r.GetUnified(),
	}
	for _, h := range r.GetHugepageLimits() {
		resources.HugepageLimits = append(resources.HugepageLimits, pod.HugepageLimit{PageSize: h.GetPageSize(), Limit: h.GetLimit()})
	}
	return resources
}

func fromImage(i *runtimeapi.Image) Image {
	image := Image{
		ID: i.GetId(), RepoTags: i.GetRepoTags(), RepoDigests: i.GetRepoDigests(), Size: i.GetSize(), Username: i.GetUsername(),
		Pinned: i.GetPinned(), Annotations: i.GetSpec().GetAnnotations(),
	}
	if i.GetUid() != nil {
		image.UID = &i.Uid.Value
	}
	return image
}

func fromEvent(e *runtimeapi.ContainerEventResponse) Event {
	event := Event{Type: EventType(e.GetContainerEventType()) + EventCreated, ID: e.GetContainerId(), At: fromNanos(e.GetCreatedAt())}
	if s := e.GetPodSandboxStatus(); s != nil {
		sandbox := fromSandboxStatus(s)
		event.Sandbox = &sandbox
	}
	for _, s := range e.GetContainersStatuses() {
		ctr := fromContainerStatus(s)
		ctr.SandboxID = e.GetPodSandboxStatus().GetId()
		event.Containers = append(event.Containers, ctr)
	}
	return event
}
